"""Localizers that ask a judge, one file a method; `agentguard.localize.llm.base` has what they share."""
