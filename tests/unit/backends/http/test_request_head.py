"""Outgoing requests: rebuilt heads, forwarded and removed headers, and ambiguous targets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.backends.base import BackendRequest, Headers
from agentguard.backends.http import HttpBackend, HttpLimits
from agentguard.backends.http.backend import RequestHeadBuilder
from agentguard.backends.http.egress_policy import parse_origin
from agentguard.errors import BackendError, ConfigError

URL = "http://127.0.0.1:8000/v1"


def heads(url: str = URL, **more: Any) -> RequestHeadBuilder:
    return RequestHeadBuilder(parse_origin(url), **{"key": None, "auth": "bearer", "headers": (), **more})


def made(
    target: str = "/chat/completions", *, by: RequestHeadBuilder | None = None, **more: Any
) -> list[bytes]:
    request = BackendRequest(target=target, **{"body": b"{}", **more})
    head = (by or heads()).build(request)
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def test_head_contains_required_and_forwarded_headers() -> None:
    headers = (
        (b"content-type", b"application/json"),
        (b"x-stainless-lang", b"python"),
        (b"x-twice", b"1"),
        (b"x-twice", b"2"),
        (b"accept-encoding", b"gzip, br"),
        (b"connection", b"keep-alive"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"999"),
        (b"host", b"evil.example"),
        (b"expect", b"100-continue"),
        (b"upgrade", b"h2c"),
        (b"agentguard-run", b"r1"),
        (b"authorization", b"Bearer the-caller's"),
    )
    assert made(headers=headers) == [
        b"POST /v1/chat/completions HTTP/1.1",
        b"host: 127.0.0.1:8000",
        b"accept-encoding: identity",
        b"content-type: application/json",
        b"x-stainless-lang: python",
        b"x-twice: 1",
        b"x-twice: 2",
        b"authorization: Bearer the-caller's",
        b"content-length: 2",
    ]


@pytest.mark.parametrize(
    ("auth", "line"),
    [
        ("bearer", b"authorization: Bearer k"),
        ("x-api-key", b"x-api-key: k"),
        ("api-key", b"api-key: k"),
    ],
)
def test_endpoint_key_replaces_key_of_caller(auth: str, line: bytes) -> None:
    callers: Headers = ((b"authorization", b"Bearer no"), (b"x-api-key", b"no"), (b"Api-Key", b"no"))
    lines = made(by=heads(key="k", auth=auth), headers=callers)
    assert line in lines
    assert not any(b"no" in other for other in lines)


def test_configured_headers_override_headers_of_caller() -> None:
    by = heads(headers=((b"anthropic-version", b"2023-06-01"),))
    lines = made(by=by, headers=((b"anthropic-version", b"1999"),))
    assert [line for line in lines if line.startswith(b"anthropic")] == [b"anthropic-version: 2023-06-01"]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("GET", b"", None),
        ("DELETE", b"", None),
        ("POST", b"", b"content-length: 0"),
        ("GET", b"x", b"content-length: 1"),
    ],
)
def test_content_length_is_sent_if_a_body_is_possible(method: str, body: bytes, length: bytes | None) -> None:
    lines = made(method=method, body=body)
    assert [line for line in lines if line.startswith(b"content-length")] == ([length] if length else [])


@pytest.mark.parametrize(
    ("url", "target", "line"),
    [
        (URL, "", b"POST /v1 HTTP/1.1"),
        (URL, "?a=b", b"POST /v1?a=b HTTP/1.1"),
        ("http://vllm", "", b"POST / HTTP/1.1"),
        ("http://vllm", "?a=b", b"POST /?a=b HTTP/1.1"),
        ("http://vllm/", "/x%20y?q=%0d", b"POST /x%20y?q=%0d HTTP/1.1"),
        (URL, "/files/a..b/...", b"POST /v1/files/a..b/... HTTP/1.1"),
    ],
)
def test_target_is_joined_to_base_url(url: str, target: str, line: bytes) -> None:
    assert made(target, by=heads(url))[0] == line


@pytest.mark.parametrize(
    "target",
    [
        "x",
        "//evil.example/x",
        "http://evil.example/",
        "@evil.example/",
        "/a\\b",
        "/a%5cb",
        "/a b",
        "/a\tb",
        "/a\r\nx: y",
        "/a\nb",
        "/a\x00b",
        "/a#b",
        "/caf\xe9",
        "/../admin",
        "/x/..",
        "/./x",
        "/%2e%2e/admin",
        "/x/%2E./admin",
        "/x%2f..%2fadmin",
    ],
)
def test_ambiguous_target_is_not_sent(target: str) -> None:
    with pytest.raises(BackendError) as caught:
        made(target)
    assert (caught.value.status, caught.value.stage) == (400, "unsent")


@pytest.mark.parametrize("method", ["", "post", "CONNECT", "TRACE", "GET /x HTTP/1.1\r\n", "A" * 30])
def test_forbidden_method_is_rejected(method: str) -> None:
    with pytest.raises(BackendError):
        made(method=method)


@pytest.mark.parametrize(
    "field",
    [
        (b"x", b"a\r\ny: b"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x: y\r\nz", b"a"),
        (b"x y", b"a"),
        (b"x:", b"a"),
        (b"", b"a"),
    ],
)
def test_header_values_cannot_inject_headers(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(BackendError) as caught:
        made(headers=((b"a", b"b"), field))
    assert caught.value.stage == "unsent"


@pytest.mark.parametrize("more", [{"key": "a\r\nx: y"}, {"key": "sk\n"}, {"headers": ((b"a b", b"c"),)}])
def test_configured_keys_and_headers_are_validated(more: Any) -> None:
    with pytest.raises(ConfigError):
        HttpBackend(URL, **more)


def test_limits_have_ranges() -> None:
    for wrong in (
        {"max_connections": 0},
        {"keepalive_timeout_s": -1},
        {"max_header_bytes": 1.5},
        {"connect_timeout_s": float("nan")},
    ):
        with pytest.raises(ConfigError):
            HttpLimits(**wrong)


NAMES = st.binary(max_size=12)
VALUES = st.binary(max_size=30)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.text(max_size=20))
def test_any_input_is_sent_as_one_request_or_rejected(fields: Any, target: str) -> None:
    by = heads()
    try:
        lines = made("/" + target, by=by, headers=tuple(fields))
    except BackendError as error:
        assert error.stage == "unsent"
        return
    head = b"\r\n".join(lines)
    assert head.count(b"\r") == head.count(b"\n") == len(lines) - 1
    assert len(lines[0].split(b" ")) == 3
    names = [line.split(b":")[0].lower() for line in lines[1:]]
    assert names.count(b"host") == names.count(b"content-length") == 1
    assert not {b"transfer-encoding", b"connection"} & set(names)
    assert b"" not in names


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/chat/completions", b"/v1/chat/completions?api-version=2024-10-21&tag=a+b"),
        ("/models?limit=2", b"/v1/models?limit=2&api-version=2024-10-21&tag=a+b"),
        ("/models?api-version=1&x=2", b"/v1/models?x=2&api-version=2024-10-21&tag=a+b"),
        ("/models?%61pi-version=1", b"/v1/models?api-version=2024-10-21&tag=a+b"),
    ],
)
def test_configured_query_replaces_parameters_of_the_caller(target: str, sent: bytes) -> None:
    by = heads(query={"api-version": "2024-10-21", "tag": "a b"})
    assert made(target, by=by)[0] == b"POST %b HTTP/1.1" % sent
