"""Workers, their supervisor and the composition root."""
