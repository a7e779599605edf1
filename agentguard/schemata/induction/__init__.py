"""Induction of new taxonomy codes from failures that no code covers."""
