"""TLS of the listener: certificate, key and client certificates from files, and reloads of both."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final, NoReturn

from agentguard.errors import ConfigError
from agentguard_server.proxy.config.schema import TlsOptions

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_FileState = tuple[tuple[int, int, int], ...]


class TlsListener:
    """TLS context of a listener whose certificate can be replaced while connections are open.

    Args:
        options: section ``listen.tls`` of the configuration.

    Attributes:
        context: context for `asyncio.loop.create_server`; a reload does not replace it.
        reload_interval_s: seconds between two calls of `reload`.

    Raises:
        ConfigError: a file is missing, is not PEM, or the key does not match the certificate.
    """

    def __init__(self, options: TlsOptions) -> None:
        self._options, self.reload_interval_s = options, options.reload_interval_s
        self._file_state = _read_file_state(options)
        self.context = self._current = _create_context(options)
        self.context.sni_callback = self._select_certificate

    def reload(self) -> bool:
        """Load the files again if they have changed; return whether new connections get another certificate.

        Raises:
            ConfigError: a file is not valid; the old certificate stays in use.
        """
        file_state = _read_file_state(self._options)
        if file_state == self._file_state:
            return False
        self._current = _create_context(self._options)
        self._file_state = file_state
        return True

    def _select_certificate(
        self, connection: ssl.SSLObject, _server_name: str | None, _context: ssl.SSLContext
    ) -> None:
        # OpenSSL calls this for each handshake, with or without a server name.
        connection.context = self._current


def _create_context(options: TlsOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.min_version]
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(options.cert_file, options.key_file, password=_reject_encrypted_key)
    except ssl.SSLError as error:
        raise ConfigError(
            f"listen.tls: {options.cert_file} and {options.key_file} are not a certificate and its key, PEM "
            f"({error.reason or 'not PEM'})"
        ) from None
    if options.client_ca_file is not None:
        try:
            context.load_verify_locations(options.client_ca_file)
        except ssl.SSLError:
            raise ConfigError(
                f"listen.tls.client_ca_file: {options.client_ca_file} has no certificate in PEM"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reject_encrypted_key() -> NoReturn:
    raise ConfigError(
        "listen.tls.key_file: the key has a passphrase; store it without one, readable by the user"
    )


def _read_file_state(options: TlsOptions) -> _FileState:
    """Return time, size and inode of the files. Raises ConfigError if a file cannot be read."""
    states = []
    for name in ("cert_file", "key_file", "client_ca_file"):
        path: Path | None = getattr(options, name)
        if path is None:
            continue
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
        except OSError as error:
            raise ConfigError(f"listen.tls.{name}: {path}: {error.strerror}") from None
        states.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(states)
