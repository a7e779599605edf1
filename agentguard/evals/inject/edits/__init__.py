"""Edits that inject one error into a recorded run; ``base.py`` has their interface and their registry."""
