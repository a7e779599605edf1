"""Environments, scripted agents and contract suites, for agentguard's tests and for those of its users."""
