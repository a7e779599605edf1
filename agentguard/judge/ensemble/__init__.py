"""Ensembles of judges: panels, unanimous judges, and order-swapped questions."""
