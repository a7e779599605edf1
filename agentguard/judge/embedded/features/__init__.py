"""What a run's steps look like to the embedded judge: one table of features, of any format."""
