"""Classical fault tolerance for calls to model endpoints: one concern a file, time is a parameter."""
