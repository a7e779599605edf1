"""Localizers, which name the step that caused the failure; one file per method."""
