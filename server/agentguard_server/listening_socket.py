"""Listening sockets of the commands, and their URLs."""

from __future__ import annotations

import errno
import socket
from typing import Final

from agentguard.errors import ConfigError

_BACKLOG: Final = 128


def bind_socket(host: str, port: int, *, name: str = "view", backlog: int = _BACKLOG) -> socket.socket:
    """Return a listening socket.

    Args:
        host: name or address, IPv4 or IPv6.
        port: port; 0 lets the system choose one.
        name: name of the command, for error messages.
        backlog: number of connections that may wait to be accepted.

    Raises:
        ConfigError: the port is in use or needs privileges, or the machine does not have the address.
    """
    host_name = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host_name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening_socket = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{name}: {host} is not an address of this machine ({error.strerror})") from None
    try:
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening_socket.bind(address)
        listening_socket.listen(backlog)
    except OSError as error:
        listening_socket.close()
        raise ConfigError(f"{name}: {_describe_bind_error(error, host, port)}") from None
    return listening_socket


def build_url(listening_socket: socket.socket, host: str, *, scheme: str = "http") -> str:
    """Return the URL at which clients reach a listening socket.

    Args:
        listening_socket: the socket.
        host: the address to listen on, as configured; a wildcard becomes the name of this machine.
        scheme: ``http`` or ``https``.
    """
    port = listening_socket.getsockname()[1]
    host_name = host.strip("[]")
    if host_name in ("0.0.0.0", "::"):  # noqa: S104  clients cannot connect to the wildcard address
        host_name = socket.gethostname()
    return f"{scheme}://[{host_name}]:{port}" if ":" in host_name else f"{scheme}://{host_name}:{port}"


def _describe_bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use: choose another with --port, or a free one with --port 0"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} needs privileges that this user does not have: choose one above 1023 with --port"
    return f"{host} is not an address of this machine ({error.strerror})"
