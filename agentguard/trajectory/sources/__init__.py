"""Places that have recorded runs."""
