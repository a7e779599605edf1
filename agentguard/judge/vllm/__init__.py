"""Managed vLLM server for a judge: start, health checks, restart and drain."""
