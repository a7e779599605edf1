"""Admin application of the proxy: health, metrics, status, administration and viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentguard_server.proxy.admin.app import AdminApp
    from agentguard_server.proxy.admin.status import ProxyStatus


def app(proxy_status: ProxyStatus) -> AdminApp:
    """Create the admin application; see `agentguard_server.proxy.admin.app`."""
    from agentguard_server.proxy.admin.app import AdminApp

    return AdminApp(proxy_status)


__all__ = ["app"]
