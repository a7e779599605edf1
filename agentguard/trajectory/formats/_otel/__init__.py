"""Conversion of OpenTelemetry spans to trajectories."""
