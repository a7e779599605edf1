"""A small tool-calling agent that plays TextWorld, and its possible faults (see record_samples.py)."""
