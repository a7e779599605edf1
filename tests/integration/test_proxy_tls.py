"""TLS of the proxy's listener: a real process, certificates from OpenSSL, and reloads."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.config.schema import TlsOptions
from agentguard_server.proxy.http.tls import TlsListener

from agentguard.errors import ConfigError
from agentguard.testing.fake_backend import FakeBackend
from tests.proxy_server import CHAT, Proxy, chat, serving, within


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for 127.0.0.1, which also serves as a client's."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2", *subject, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    return {name: make_certificate(folder, name) for name in ("first", "second", "client")}


@pytest.fixture(scope="module")
def proxy(
    certificates: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """Serve with two workers and the certificate ``first`` in files that a test may replace."""
    folder = tmp_path_factory.mktemp("proxy")
    install(folder, certificates["first"])
    with FakeBackend() as backend:
        document = {
            "listen": {
                "port": 0,
                "workers": 2,
                "shutdown_timeout_s": 1,
                "tls": {
                    "cert_file": str(folder / "tls.pem"),
                    "key_file": str(folder / "tls.key"),
                    "reload_interval_s": 0.1,
                },
            },
            "limits": {"header_timeout_s": 1, "max_body_bytes": 2048},
            "backends": {"replicas": [{"name": "a", "url": backend.url}], "health": "off"},
        }
        with serving(folder, document) as proxy:
            yield proxy


def install(folder: Path, pair: tuple[Path, Path]) -> None:
    """Replace certificate and key as a certificate manager does: atomically, one after the other."""
    for source, name in zip(pair, ("tls.pem", "tls.key"), strict=True):
        beside = folder / f"{name}.new"
        beside.write_bytes(source.read_bytes())
        beside.replace(folder / name)


def trusting(pair: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pair[0]))


def ask(proxy: Proxy, context: ssl.SSLContext, body: Any = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=30, context=context)
    try:
        connection.request("POST", CHAT, json.dumps(body or chat()))
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def serves(proxy: Proxy, pair: tuple[Path, Path]) -> bool:
    """Return whether several new connections, so both workers, present a certificate."""
    try:
        return all(ask(proxy, trusting(pair))[0] == 200 for _ in range(8))
    except ssl.SSLCertVerificationError:
        return False


def test_printed_url_has_the_scheme_of_the_listener(proxy: Proxy) -> None:
    assert proxy.told["url"].startswith("https://")


def test_whole_and_streamed_answers_pass_tls(
    proxy: Proxy, certificates: dict[str, tuple[Path, Path]]
) -> None:
    context = trusting(certificates["first"])
    assert json.loads(ask(proxy, context)[2])["choices"]
    assert ask(proxy, context, chat(stream=True))[2].endswith(b"data: [DONE]\n\n")


def test_body_that_is_too_large_gets_its_error_over_tls(
    proxy: Proxy, certificates: dict[str, tuple[Path, Path]]
) -> None:
    assert ask(proxy, trusting(certificates["first"]), chat(text="x" * 4_000_000))[0] == 413


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 400])
def test_connection_without_a_handshake_is_closed_in_time(proxy: Proxy, sent: bytes) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
        client.sendall(sent)
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert time.monotonic() - began < 10
    assert b"HTTP" not in proxy.log.read_bytes()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_versions_are_refused(proxy: Proxy, certificates: dict[str, tuple[Path, Path]]) -> None:
    context = trusting(certificates["first"])
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(proxy, context)


def test_certificate_is_replaced_without_a_dropped_connection(
    proxy: Proxy, certificates: dict[str, tuple[Path, Path]]
) -> None:
    first, second = certificates["first"], certificates["second"]
    held = http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=30, context=trusting(first))
    held.connect()
    folder = proxy.config.parent
    try:
        (folder / "tls.pem").write_text("not a certificate")
        within(20, lambda: "the certificate was not reloaded" in proxy.said())
        assert serves(proxy, first), "an invalid file changes nothing"
        install(folder, second)
        within(20, lambda: serves(proxy, second))
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(proxy, trusting(first))
        held.request("POST", CHAT, json.dumps(chat()))
        assert held.getresponse().status == 200
    finally:
        held.close()
        install(folder, first)
        within(20, lambda: serves(proxy, first))


def test_client_certificate_is_required_if_configured(
    certificates: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    (cert, key), (client_cert, client_key) = certificates["first"], certificates["client"]
    tls = {"cert_file": str(cert), "key_file": str(key), "client_ca_file": str(client_cert)}
    with FakeBackend() as backend:
        document = {
            "listen": {"port": 0, "tls": tls},
            "backends": {"replicas": [{"name": "a", "url": backend.url}], "health": "off"},
        }
        with serving(tmp_path, document) as proxy:
            context = trusting(certificates["first"])
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(proxy, context)
            context.load_cert_chain(client_cert, client_key)
            assert ask(proxy, context)[0] == 200


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("first.pem", "second.key", "are not a certificate and its key"),
        ("first.key", "first.key", "are not a certificate and its key"),
        ("none.pem", "first.key", r"listen\.tls\.cert_file: .*none\.pem: No such file"),
        ("first.pem", "locked.key", "the key has a passphrase"),
    ],
)
def test_invalid_files_are_a_configuration_error(
    certificates: dict[str, tuple[Path, Path]], cert: str, key: str, message: str
) -> None:
    folder = certificates["first"][0].parent
    if key == "locked.key":
        source = ["openssl", "ec", "-in", folder / "first.key", "-aes256", "-passout", "pass:secret"]
        subprocess.run([*source, "-out", folder / key], check=True, capture_output=True)
    with pytest.raises(ConfigError, match=message):
        TlsListener(TlsOptions(cert_file=folder / cert, key_file=folder / key))
