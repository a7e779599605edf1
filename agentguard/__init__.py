"""Find the step that made an LLM agent fail, while it runs or after it."""

__version__ = "0.1.0"
