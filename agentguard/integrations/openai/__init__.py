"""Integration with OpenAI's and Anthropic's clients: HTTP transports that guard the requests of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.openai.httpx2_transport import (
        AsyncGuardTransport as AsyncGuardTransport,
        GuardTransport as GuardTransport,
    )
    from agentguard.integrations.openai.httpx_transport import (
        AsyncHttpxGuardTransport as AsyncHttpxGuardTransport,
        HttpxGuardTransport as HttpxGuardTransport,
    )

_EXPORTS = {
    "GuardTransport": "agentguard.integrations.openai.httpx2_transport",
    "AsyncGuardTransport": "agentguard.integrations.openai.httpx2_transport",
    "AsyncHttpxGuardTransport": "agentguard.integrations.openai.httpx_transport",
    "HttpxGuardTransport": "agentguard.integrations.openai.httpx_transport",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
