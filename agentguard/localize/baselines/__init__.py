"""Baseline localizers."""
