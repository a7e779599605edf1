"""Event log of runs: event types, assembler and append-only recorder."""
