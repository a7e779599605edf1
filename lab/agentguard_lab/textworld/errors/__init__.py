"""Catalogue of errors that the TextWorld agent makes."""
