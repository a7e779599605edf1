"""Detectors: what went wrong in each step."""
