"""Backends: model endpoints over HTTP, and pools of them.

A backend has the interface of `agentguard.resilience` with HTTP: ``send(request, deadline)`` returns a
`Response` or a `StreamingResponse`, or raises a ResilienceError. A pool of replicas has the same interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.backends.base import (
        Backend as Backend,
        BackendRequest as BackendRequest,
        Response as Response,
        StreamingResponse as StreamingResponse,
        UpstreamError as UpstreamError,
    )
    from agentguard.backends.config import BackendsOptions as BackendsOptions
    from agentguard.backends.pool import Pool as Pool

_EXPORTS = {
    "Backend": "agentguard.backends.base",
    "BackendRequest": "agentguard.backends.base",
    "BackendsOptions": "agentguard.backends.config",
    "Pool": "agentguard.backends.pool",
    "Response": "agentguard.backends.base",
    "StreamingResponse": "agentguard.backends.base",
    "UpstreamError": "agentguard.backends.base",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
