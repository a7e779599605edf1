"""LLM judge: client, prompts, typed answers and generated text."""
