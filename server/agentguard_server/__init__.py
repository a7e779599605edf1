"""HTTP servers of agentguard: the proxy and the viewer."""
