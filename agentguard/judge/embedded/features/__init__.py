"""Features of a run's steps for the embedded judge: one table for any format."""
