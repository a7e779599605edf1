"""Event log of runs: recorder and assembler of events, and their append-only file."""
