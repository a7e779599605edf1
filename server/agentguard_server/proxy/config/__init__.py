"""Configuration of the proxy."""
