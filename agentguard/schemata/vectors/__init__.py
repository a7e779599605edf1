"""Vectors of texts and traits: vectorisers, their files, and a matrix for nearest-neighbour search."""
