"""The guard at work inside a run that goes on: events in, plans out."""
