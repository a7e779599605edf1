"""Taxonomies of failures."""
