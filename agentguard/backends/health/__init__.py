"""Active health checks, known-answer probes and health hints."""
