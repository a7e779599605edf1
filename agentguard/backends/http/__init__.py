"""Minimal HTTP/1.1 client for model endpoints: strict, with limits on every resource, and fast.

It supports only what such endpoints need: no redirects, cookies, proxies, HTTP/2 or compression.
"""

from agentguard.backends.http.api_key_file import ApiKeyFile
from agentguard.backends.http.backend import Auth, HttpBackend
from agentguard.backends.http.egress_policy import EgressPolicy
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.response_stream import HttpStream

__all__ = ["ApiKeyFile", "Auth", "EgressPolicy", "HttpBackend", "HttpLimits", "HttpStream"]
