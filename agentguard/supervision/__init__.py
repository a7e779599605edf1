"""Child processes: start, health check and restart."""
