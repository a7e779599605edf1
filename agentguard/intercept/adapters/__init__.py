"""Adapters of the interceptor, one for each model API."""
