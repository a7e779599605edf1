"""Acceptance tests of the result of a run: rules, LLM rules and their persistence."""
