"""Trajectory formats; one module an importer."""
