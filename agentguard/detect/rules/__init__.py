"""The built-in detectors; one file a group."""

BUILTIN: dict[str, str] = {}
