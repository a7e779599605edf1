"""Proxy in front of model endpoints, with load balancing, resilience and an inline guard."""
