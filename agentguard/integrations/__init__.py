"""The guard inside frameworks: one file a framework, each reduces its own to the events of a session."""
