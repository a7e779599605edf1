"""Inline guard of the proxy."""
