"""Evaluation on annotated data."""
