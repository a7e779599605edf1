"""Continuation of interrupted streams at another replica."""
