"""Runtime of a guarded run: consumes its events and applies recovery plans."""
