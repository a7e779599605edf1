"""What the proxy answers besides model APIs: health, metrics, state, administration, the viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentguard_server.proxy.admin.app import AdminApp
    from agentguard_server.proxy.admin.status import ProxyStatus


def app(proxy_status: ProxyStatus) -> AdminApp:
    """The application that answers all that is no model API; see `agentguard_server.proxy.admin.app`."""
    from agentguard_server.proxy.admin.app import AdminApp

    return AdminApp(proxy_status)


__all__ = ["app"]
