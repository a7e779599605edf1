"""Judges: answer typed questions about a run with probabilities."""
