"""A small tool-calling agent that plays TextWorld, and the faults it can be given (see record_samples.py)."""
