"""What the proxy answers besides model APIs: health, metrics, state, administration, the viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentguard_server.proxy.admin.app import Admin
    from agentguard_server.proxy.admin.status import ProxyStatus


def app(state: ProxyStatus) -> Admin:
    """The application that answers all that is no model API; see `agentguard_server.proxy.admin.app`."""
    from agentguard_server.proxy.admin.app import Admin

    return Admin(state)


__all__ = ["app"]
