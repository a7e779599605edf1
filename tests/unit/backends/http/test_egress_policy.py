"""Egress policy: parsing of base URLs, refused addresses, and TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentguard.backends.base import Response
from agentguard.backends.http import EgressPolicy, HttpBackend, HttpLimits
from agentguard.backends.http.egress_policy import (
    UpstreamOrigin,
    check_origin,
    find_refusal_reason,
    parse_origin,
    resolve_addresses,
)
from agentguard.errors import BackendError, ConfigError
from tests.unit.backends.http.scripted_server import OK, request, run, serving, soon


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://127.0.0.1:8000/v1", UpstreamOrigin("http", "127.0.0.1", 8000, "/v1"), "127.0.0.1:8000"),
        (
            "https://api.Example.com/v1/",
            UpstreamOrigin("https", "api.example.com", 443, "/v1"),
            "api.example.com",
        ),
        ("HTTP://vllm", UpstreamOrigin("http", "vllm", 80, ""), "vllm"),
        ("https://vllm.:8443", UpstreamOrigin("https", "vllm", 8443, ""), "vllm:8443"),
        ("http://[::1]:80/a/b", UpstreamOrigin("http", "::1", 80, "/a/b"), "[::1]"),
        ("http://my_host:1/x~y", UpstreamOrigin("http", "my_host", 1, "/x~y"), "my_host:1"),
    ],
)
def test_base_url_is_parsed(url: str, origin: UpstreamOrigin, authority: str) -> None:
    assert parse_origin(url) == origin
    assert origin.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "vllm:8000",
        "ftp://vllm/",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "http:/vllm",
        "//vllm/v1",
        "http://user@vllm/",
        "http://user:sk-canary@vllm/",
        "http://good.example\\@evil.example/",
        "http://good.example\\.evil.example/",
        "http://vllm\\v1",
        "http://vllm/v1?key=sk-canary",
        "http://vllm/v1#x",
        "http://vllm/%2e%2e/",
        "http://vllm/../x",
        "http://vllm/a/./b",
        "http://vllm:0/",
        "http://vllm:65536/",
        "http://vllm:123456/",
        "http://vllm:8o/",
        "http://vllm :80/",
        " http://vllm/",
        "http://vllm/\r\nx: y",
        "http://vllm/\x00",
        "http://v\u2100m/",
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.1.1/",
        "http://[::1/",
        "http://[fe80::1%25eth0]/",
        "http://[gggg::1]/",
        "http://[1.2.3.4.5]/",
        "http://-vllm/",
    ],
)
def test_ambiguous_base_url_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_origin(url)
    assert "sk-canary" not in str(caught.value)


METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fe80::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
]
NOBODY = ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1", "::ffff:0.0.0.0"]


@pytest.mark.parametrize("address", METADATA)
def test_metadata_services_are_refused_in_every_notation(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(ConfigError, match="refused"):
        HttpBackend(f"http://{host}/latest")
    named = UpstreamOrigin("http", "name.example", 80, "")
    assert (
        find_refusal_reason(ipaddress.ip_address(address), named, EgressPolicy(allow_private=True))
        is not None
    )
    HttpBackend(f"http://{host}/latest", egress=EgressPolicy(allow_metadata=True))


@pytest.mark.parametrize("address", NOBODY)
def test_unroutable_addresses_are_always_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(ConfigError, match="refused"):
        check_origin(parse_origin(f"http://{host}/"), EgressPolicy(allow_metadata=True, allow_private=True))


@pytest.mark.parametrize(
    ("host", "address", "allowed"),
    [
        ("api.example.com", "10.0.0.1", False),
        ("api.example.com", "127.0.0.1", False),
        ("api.example.com", "::ffff:127.0.0.1", False),
        ("api.example.com", "fd12::1", False),
        ("api.example.com", "93.184.215.14", True),
        ("vllm", "10.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("vllm.models.svc.cluster.local", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.1", True),
    ],
)
def test_public_name_must_not_resolve_to_private_address(host: str, address: str, allowed: bool) -> None:
    origin = UpstreamOrigin("http", host, 80, "")
    found = ipaddress.ip_address(address)
    assert (find_refusal_reason(found, origin, EgressPolicy()) is None) is allowed
    assert find_refusal_reason(found, origin, EgressPolicy(allow_private=True)) is None


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Resolve names to these addresses, one list after the other; return the queries."""
    left, asked = list(answers), list[str]()

    async def getaddrinfo(self: Any, host: str, port: int, **more: Any) -> Any:
        asked.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


def test_connection_uses_the_checked_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolving(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])

    async def main() -> None:
        async with serving() as server:
            client = HttpBackend(f"http://models.internal:{server.port}/v1")
            answer = await client.send(request(), soon())
            assert isinstance(answer, Response)
            assert server.heard[0].head.split(b"\r\n")[1] == f"host: models.internal:{server.port}".encode()
            await client.send(request(), soon())  # cached: there is no second query
            assert asked.count("models.internal") == 1
            for connection in list(client._connection_pool._all):
                connection.abort()
            await asyncio.sleep(0.01)
            with pytest.raises(BackendError, match="metadata") as caught:
                await client.send(request(), soon())
            assert caught.value.stage == "unsent"
            assert server.connections == 1
            await client.aclose()

    run(main())


def test_one_refused_address_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["93.184.215.14", "10.0.0.1"])

    async def main() -> None:
        with pytest.raises(BackendError, match="private"):
            await resolve_addresses(parse_origin("http://api.example.com"), EgressPolicy())

    run(main())


def test_next_address_is_tried_after_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["127.0.0.2", "127.0.0.1"])

    async def main() -> None:
        async with serving() as server:
            client = HttpBackend(f"http://models.internal:{server.port}/v1")
            await client.send(request(), soon())
            assert client.connection_count == 1
            await client.aclose()

    run(main())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1 and its key."""
    made = tmp_path_factory.mktemp("tls")
    cert, key = made / "cert.pem", made / "key.pem"
    name = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    made_of = [*kind, *name, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(made_of, check=True, capture_output=True)
    return cert, key


def test_tls_is_verified_against_configured_file(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def main() -> None:
        async with serving(OK, OK, OK, ssl=context) as server:
            url = server.url.replace("http:", "https:")
            good = HttpBackend(url, egress=EgressPolicy(ca_file=str(certificate[0])))
            for _ in range(2):
                assert isinstance(await good.send(request(), soon()), Response)
            assert server.connections == 1
            await good.aclose()
            unknown = HttpBackend(url)
            with pytest.raises(BackendError, match="certificate is not trusted") as caught:
                await unknown.send(request(), soon())
            assert (caught.value.stage, unknown.connection_count) == ("unsent", 0)
            other = HttpBackend(
                url.replace("127.0.0.1", "localhost"), egress=EgressPolicy(ca_file=str(certificate[0]))
            )
            with pytest.raises(BackendError, match="certificate"):
                await other.send(request(), soon())
            blind = HttpBackend(url, egress=EgressPolicy(verify=False))
            assert isinstance(await blind.send(request(), soon()), Response)
            for client in (unknown, other, blind):
                await client.aclose()

    run(main())


def test_endpoint_without_tls_fails_before_send() -> None:
    async def main() -> None:
        async with serving() as server:
            limits = HttpLimits(connect_timeout_s=0.2)  # waits for the end of a head that never comes
            client = HttpBackend(server.url.replace("http:", "https:"), limits=limits)
            with pytest.raises(BackendError) as caught:
                await client.send(request(), soon())
            assert (caught.value.stage, client.connection_count) == ("unsent", 0)
            await client.aclose()

    run(main())


def test_empty_certificate_file_is_a_config_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pem", tmp_path):
        with pytest.raises(ConfigError, match="certificates"):
            HttpBackend("https://example.com", egress=EgressPolicy(ca_file=str(path)))
