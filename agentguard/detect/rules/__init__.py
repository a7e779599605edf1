"""The rules; one file a group of detectors."""

BUILTIN: dict[str, str] = {}
