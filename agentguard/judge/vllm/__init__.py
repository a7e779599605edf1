"""A vLLM of one's own as the judge: started, watched by heartbeat and canary, restarted, drained."""
