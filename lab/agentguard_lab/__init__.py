"""Research tools: the TextWorld agent and the generator of injected runs."""
