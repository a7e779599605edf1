"""Guarded requests and their answers, without input or output; shared by the transports and the proxy.

`Interceptor` assigns each request to a run by the history that the client sends, and a `GuardedRequest`
judges its answers. An `ApiAdapter` translates the items of one API, and an `EventStreamBuffer` buffers
the events of a stream until the verdict. No module of this package opens a socket or waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.intercept.api_adapter import ApiAdapter as ApiAdapter
    from agentguard.intercept.guarded_request import GuardedRequest as GuardedRequest
    from agentguard.intercept.interceptor import Interceptor as Interceptor
    from agentguard.intercept.stream_buffer import EventStreamBuffer as EventStreamBuffer

_EXPORTS = {
    "ApiAdapter": "agentguard.intercept.api_adapter",
    "EventStreamBuffer": "agentguard.intercept.stream_buffer",
    "GuardedRequest": "agentguard.intercept.guarded_request",
    "Interceptor": "agentguard.intercept.interceptor",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
