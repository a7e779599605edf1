"""The servers of agentguard: what answers over HTTP lives here, above everything else."""
