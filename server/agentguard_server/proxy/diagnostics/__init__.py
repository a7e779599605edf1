"""Configuration checks and the explanation of a configuration."""
