"""Model endpoints: one that is spoken to over HTTP, and several of them behind one seam.

A backend is the seam of `agentguard.resilience` with HTTP in it: ``send(request, deadline)`` returns an
`ScriptedAnswer`, or a `Streamed` one, or raises a ResilienceError. A pool of replicas has the same shape.
"""
