"""Environments, scripted agents and contract suites, for the tests of agentguard and of its users."""
