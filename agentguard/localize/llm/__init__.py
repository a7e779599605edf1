"""Localizers that ask a judge, one file per method; `agentguard.localize.llm.base` is shared."""
