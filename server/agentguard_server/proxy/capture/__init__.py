"""Capture pipeline: recorder, collector process and run writer."""
