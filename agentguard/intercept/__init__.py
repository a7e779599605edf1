"""A guarded request and its answers without input or output: what a transport and the proxy have in common.

`agentguard.intercept.interceptor.Interceptor` joins requests to runs by what they resend, and an `Exchange`
judges the answers. A dialect says how one API spells what a run is made of, and a hold keeps of its streams
what the client may not see yet. Nothing here opens a socket or waits.
"""
