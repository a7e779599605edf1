"""Edits that put one error into a recorded run; ``base.py`` says what an edit is and has their registry."""
