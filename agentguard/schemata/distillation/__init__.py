"""Distillation of failures into error schemata, by rules or by a language model."""
