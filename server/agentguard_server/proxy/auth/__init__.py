"""API keys, authorisation and rate limits."""
