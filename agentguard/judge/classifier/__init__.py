"""Judges that classify with the pooling endpoints of vLLM."""
