"""Egress policy: a strict parser of base URLs, and a check of every address before a connection.

A name is resolved once per connection and all its addresses are checked. The connection then uses one of
these addresses, so a second lookup cannot return another one (DNS rebinding). Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final

from agentguard.errors import BackendError, ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# RFC 3986 reduced to what a base URL needs: no userinfo, query, fragment, escapes or backslash.
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\.?)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[a-z0-9._~!$&'()*+,;=:@-]*)*)",
    re.ASCII | re.IGNORECASE,
)
_PORTS: Final = {"http": 80, "https": 443}
_INTERNAL_SUFFIXES: Final = (
    ".local",
    ".internal",
    ".svc",
    ".cluster.local",
    ".localhost",
    ".lan",
    ".home.arpa",
)
_METADATA_ADDRESSES: Final = frozenset(
    map(
        ipaddress.ip_address,
        # AWS, Google, Alibaba, Azure, Oracle; 169.254.169.254 and similar are link-local and need no entry.
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """Policy on the addresses of an endpoint.

    Attributes:
        allow_private: whether private and loopback addresses are allowed. None allows them if the host is a
            literal address, has no dots, or ends in ``.local``, ``.internal``, ``.svc`` or similar.
        allow_metadata: whether link-local addresses and cloud metadata services are allowed.
        ca_file: trusted certificates in place of the system's.
        verify: whether the endpoint's certificate is verified.
    """

    allow_private: bool | None = None
    allow_metadata: bool = False
    ca_file: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class UpstreamOrigin:
    """Parsed base URL. ``host`` has no brackets, and ``path`` has no trailing slash."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def literal_address(self) -> Address | None:
        """Return the address if the host is a literal address, else None."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_internal(self) -> bool:
        """Return whether the URL itself implies a private address."""
        return (
            self.literal_address is not None or "." not in self.host or self.host.endswith(_INTERNAL_SUFFIXES)
        )


def parse_origin(url: str) -> UpstreamOrigin:
    """Parse a base URL. Raises ConfigError if the URL is invalid; the message does not contain it."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(
            "a backend's url must be http://host:port/path, without user, query, fragment or escapes"
        )
    scheme, host = match["scheme"].lower(), match["host"].lower().strip("[]").removesuffix(".")
    port = int(match["port"]) if match["port"] else _PORTS[scheme]
    origin = UpstreamOrigin(scheme, host, port, match["path"].rstrip("/"))
    if not 0 < port < 65536:
        raise ConfigError(f"a backend's port must be from 1 to 65535, not {port}")
    if {".", ".."} & set(origin.path.split("/")):
        raise ConfigError("a backend's url has a segment . or .. in its path")
    numeric = host.rsplit(".", 1)[-1][:1].isdigit() or match["host"].startswith("[")
    if numeric and origin.literal_address is None:  # 0x7f.1, 2130706433: resolvers accept them as addresses
        raise ConfigError("a backend's host is neither a name nor an address in its usual form")
    return origin


def find_refusal_reason(address: Address, origin: UpstreamOrigin, egress: EgressPolicy) -> str | None:
    """Return the reason to refuse an address, in one clause; None if it is allowed."""
    target_address = _extract_ipv4(address)
    if target_address.is_multicast or target_address.is_unspecified or int(target_address) == 0xFFFFFFFF:
        return "it is not the address of one machine"
    if target_address.is_link_local or target_address in _METADATA_ADDRESSES:
        return None if egress.allow_metadata else "it is link-local or a cloud's metadata service"
    is_private_allowed = origin.is_internal if egress.allow_private is None else egress.allow_private
    is_internal = target_address.is_private or target_address.is_loopback
    return (
        "it is a private address, and the url does not name it"
        if is_internal and not is_private_allowed
        else None
    )


def check_origin(origin: UpstreamOrigin, egress: EgressPolicy) -> UpstreamOrigin:
    """Return the origin. Raises ConfigError if its host is a refused address."""
    literal = origin.literal_address
    reason = find_refusal_reason(literal, origin, egress) if literal is not None else None
    if reason is not None:
        raise ConfigError(f"a backend's address is refused: {reason}")
    return origin


async def resolve_addresses(origin: UpstreamOrigin, egress: EgressPolicy) -> list[str]:
    """Return the addresses to connect to, in order. All addresses of the name must be allowed.

    Raises:
        BackendError: the name has no address, or a refused one.
    """
    if origin.literal_address is not None:
        return [origin.host]
    loop = asyncio.get_running_loop()
    try:
        entries = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise BackendError("the endpoint's name has no address", stage="unsent") from None
    hosts = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    for host in hosts:
        reason = find_refusal_reason(ipaddress.ip_address(host.split("%")[0]), origin, egress)
        if reason is not None:
            raise BackendError(f"the endpoint's address is refused: {reason}", stage="unsent")
    return hosts


def _extract_ipv4(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 address: mapped, compatible, 6to4 or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and (address in _NAT64 or 1 < int(address) <= 0xFFFFFFFF):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address
