"""Backends: model endpoints over HTTP, and pools of them.

A backend has the interface of `agentguard.resilience` with HTTP: ``send(request, deadline)`` returns a
`Response` or a `StreamingResponse`, or raises a ResilienceError. A pool of replicas has the same interface.
"""
