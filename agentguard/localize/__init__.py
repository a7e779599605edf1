"""Localizers: which step caused the failure; one file a method."""
