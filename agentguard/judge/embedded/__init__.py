"""Embedded judge: the trained scikit-learn model, its features, files and training."""
