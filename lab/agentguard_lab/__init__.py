"""Research tools: scripted agents in TextWorld games, and the generator of their runs."""
