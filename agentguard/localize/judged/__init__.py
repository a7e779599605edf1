"""Localizers that ask a judge, one file a method; `agentguard.localize.judged.method` has what they share."""
