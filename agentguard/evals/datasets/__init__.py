"""Data sets: manifests, verification, rebuild and writers."""
