"""TLS to an endpoint: verified by default, against the system's certificates or a file of one's own."""

from __future__ import annotations

import ssl
from typing import Any

from agentguard.backends.http.egress_policy import Egress, UpstreamOrigin
from agentguard.errors import ConfigError


class Tls:
    """What connecting with TLS needs; the certificates are read once. Raises ConfigError if they can't be."""

    def __init__(self, origin: UpstreamOrigin, egress: Egress) -> None:
        try:
            context = ssl.create_default_context(cafile=egress.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{egress.ca_file}: no file of certificates in PEM form ({type(error).__name__})"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if not egress.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._arguments = {"ssl": context, "server_hostname": origin.host}

    def arguments(self) -> dict[str, Any]:
        """For asyncio's ``create_connection``."""
        return self._arguments
