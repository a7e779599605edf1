"""Judges: typed questions about a run in, probabilities out."""
