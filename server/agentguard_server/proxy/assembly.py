"""Puts a gateway together from its settings, and exchanges its parts when they change."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from agentguard.errors import MissingExtra
from agentguard_server.proxy.gateway import Gateway
from agentguard_server.proxy.keys import Keyring
from agentguard_server.proxy.settings import ProxySettings

if TYPE_CHECKING:
    from agentguard.backends.pool import Pool

logger = logging.getLogger("agentguard.proxy")

_NEEDED: Final = ("uvicorn", "httptools", "msgspec")


def check_installed() -> None:
    """Raises MissingExtra if a package that the proxy needs is not there."""
    needed = _NEEDED if sys.platform == "win32" else (*_NEEDED, "uvloop")
    for package in needed:
        if find_spec(package) is None:
            raise MissingExtra(package, "serve")


class Assembly:
    """A gateway with the parts that were made for it.

    Args:
        settings: the configuration.
        worker: number of this process, from 0 on.

    Attributes:
        gateway: what the application works with.
        pool: who answers requests.

    Raises:
        ConfigError: a part can't be made as it is configured.
    """

    def __init__(self, settings: ProxySettings, *, worker: int = 0) -> None:
        from agentguard.backends.pool import Pool

        self.pool: Pool = Pool(settings.backends)
        self.gateway = Gateway(settings, self.pool)
        self.gateway.worker = worker
        self._share = 1 / settings.listen.workers
        self.gateway.keys = Keyring.of(settings.keys, share=self._share)

    async def start(self) -> None:
        """Begin: heartbeats and whatever else runs beside the requests."""
        await self.pool.start()

    async def apply(self, settings: ProxySettings) -> None:
        """Exchange what has changed; requests that are under way go on as they began.

        Raises:
            ConfigError: a part can't be made of the new settings; the old ones hold then.
        """
        gateway, before = self.gateway, self.gateway.settings
        await self.pool.apply(settings.backends)
        keys = Keyring.of(settings.keys, share=self._share)
        if keys is not None and gateway.keys is not None:
            keys.inherit(gateway.keys)
        gateway.settings, gateway.keys = settings, keys
        if settings.listen != before.listen:
            logger.warning("what the proxy listens on does not change before it is started anew")

    async def aclose(self) -> None:
        """End what runs beside the requests."""
        await self.pool.aclose()
