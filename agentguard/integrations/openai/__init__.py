"""Integration with OpenAI's client: HTTP transports that guard the requests of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.openai.httpx_transport import (
        AsyncHttpxGuardTransport as AsyncHttpxGuardTransport,
    )
    from agentguard.integrations.openai.httpx_transport import HttpxGuardTransport as HttpxGuardTransport
    from agentguard.integrations.openai.transport import AsyncGuardTransport as AsyncGuardTransport
    from agentguard.integrations.openai.transport import GuardTransport as GuardTransport

_EXPORTS = {
    "GuardTransport": "agentguard.integrations.openai.transport",
    "AsyncGuardTransport": "agentguard.integrations.openai.transport",
    "AsyncHttpxGuardTransport": "agentguard.integrations.openai.httpx_transport",
    "HttpxGuardTransport": "agentguard.integrations.openai.httpx_transport",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
