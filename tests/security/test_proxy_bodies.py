"""Malicious bodies of requests and answers, with guard and capture on: never a 500 and never a crash.

Known cases: unsafe deserialisation (CVE-2025-64439). ``json.loads`` raises RecursionError at depth 1,100, and
Python rejects integers of more than 4,300 digits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from agentguard.testing.fake_backend import FakeBackend, Ok, Raw
from tests.faults.proxy_client import PATHS, ask, body_for, outcome
from tests.faults.proxy_process import Proxy, replicas, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["gateway", "guarded"])
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Proxy, FakeBackend]]:
    with FakeBackend(name="a") as a:
        settings = {
            "backends": {
                "replicas": replicas(a),
                "health": "off",
                "pipeline": {"circuit_breaker": "off", "retry": {"backoff": {"initial_delay_s": 0.001}}},
            },
            "capture": {"store": str(tmp_path_factory.mktemp("store") / "runs.db")},
            "logs": {"level": "debug"},
        }
        if request.param == "guarded":
            settings |= {"guard": {"mode": "always"}}
        with serving(tmp_path_factory.mktemp("bodies"), settings) as proxy:
            yield proxy, a


def chat(content: bytes) -> bytes:
    return b'{"model": "m", "messages": [{"role": "user", "content": %s}]}' % content


NESTED = b"[" * 1100 + b"]" * 1100
BODIES = {
    "empty": b"",
    "blank": b"   ",
    "a number": b"1",
    "null": b"null",
    "a list": b"[]",
    "a string": b'"x"',
    "cut": b'{"model": "m", "messages": [',
    "two": b"{}{}",
    "a lone surrogate": chat(rb'"\ud800"'),
    "surrogates the wrong way": chat(rb'"\udc00\ud800"'),
    "bytes that are no text": chat(b'"\xff\xfe"'),
    "a raw surrogate": chat(b'"\xed\xa0\x80"'),
    "overlong": chat(b'"\xc0\xaf"'),
    "a BOM": b"\xef\xbb\xbf{}",
    "UTF-16": '{"model": "m"}'.encode("utf-16"),
    "NUL": chat(b'"a\x00b"'),
    "an escaped NUL": chat(rb'"a\u0000b"'),
    "NaN": chat(b"NaN"),
    "Infinity": chat(b"-Infinity"),
    "5,000 digits": chat(b"1" * 5000),
    "1e999": chat(b"1e999"),
    "depth 1,100": chat(NESTED),
    "depth 100,000": chat(b"[" * 100_000 + b"]" * 100_000),
    "depth of objects": b'{"model": "m", "x": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    "deep where it is read": b'{"model": ' + NESTED + b"}",
    "a model that is none": b'{"model": {"a": [1]}, "messages": 7, "stream": "yes"}',
    "messages that are none": b'{"messages": [1, null, [], {"role": 5, "content": {"x": [[]]}}]}',
    "calls that are none": b'{"messages": [{"role": "assistant", "tool_calls": [{"function": 3}, 4]}]}',
    "twice the same field": b'{"model": "m", "model": ["n"], "stream": true, "stream": false}',
    "arguments that are none": chat(b'"x"')[:-2]
    + b', {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": [], "arguments": "{{"}}]}]}',
    "a type of Python": b'{"__reduce__": ["os.system", ["id"]], "lc": 2, "type": "constructor"}',
    "yaml": b"!!python/object/apply:os.system ['id']",
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a million fields": b"{" + b",".join(b'"%d":0' % n for n in range(200_000)) + b"}",
    "a long name": b'{"' + b"a" * 1_000_000 + b'": 1}',
}


@pytest.mark.parametrize("name", BODIES)
def test_malicious_request_body_causes_no_server_error(scene: tuple[Proxy, FakeBackend], name: str) -> None:
    proxy, _ = scene

    async def main() -> None:
        for api, path in PATHS.items():
            for headers in ((), (("agentguard-run", "r1"),)):
                got = await ask(proxy.port, path, BODIES[name], headers=headers)
                assert got.status in (200, 400), f"{name} as {api}: {got.status} {got.body[:200]!r}"
                if got.status == 400:
                    outcome(api, got, stream=False)
        assert (await proxy.get("/healthz")).status == 200

    asyncio.run(main())


ANSWERS = {name: BODIES[name] for name in BODIES if name not in ("empty", "blank", "a million fields")}


@pytest.mark.parametrize("stream", [False, True])
def test_malicious_answer_body_causes_no_crash(scene: tuple[Proxy, FakeBackend], stream: bool) -> None:
    proxy, a = scene
    whole = json.dumps({"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": {}}]})

    async def main() -> None:
        for name, junk in ANSWERS.items():
            for body in (
                junk,
                whole.replace("{}", '{"role": "assistant", "content": @@}').encode().replace(b"@@", junk),
            ):
                data = b"data: " + body + b"\n\ndata: [DONE]\n\n" if stream else body
                kind = b"text/event-stream" if stream else b"application/json"
                head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (
                    kind,
                    len(data),
                )
                a.set_script(Raw(data=head + data))
                got = await ask(proxy.port, PATHS["chat"], body_for("chat", stream=stream, tools=True))
                assert got.end == "whole", f"{name}: {got}"
                assert got.status in (200, 502, 503, 504), f"{name}: {got}"
        a.set_script(Ok())
        assert (await proxy.get("/healthz")).status == 200
        assert (await ask(proxy.port, PATHS["chat"], body_for("chat"))).status == 200

    asyncio.run(main())
    assert "Traceback" not in proxy.printed()


IDS = [
    "' OR 1=1 --", "1; DROP TABLE runs; --", "../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "a%00b",
    "x" * 5000, "{{7777*7777}}", "${jndi:ldap://x}", "\\u0000", "%27%20OR%201=1", "%", "*", "-1", "NaN",
]  # fmt: skip


def test_ids_and_filters_are_not_interpreted(scene: tuple[Proxy, FakeBackend]) -> None:
    """SQL in ids and filters (CVE-2026-42208, CVE-2025-67644), paths and templates in ids."""
    proxy, _ = scene

    async def main() -> None:
        for one in IDS:
            quoted = one.replace(" ", "%20").replace("{", "%7b").replace("}", "%7d").replace("\\", "%5c")
            for path in (
                f"/agentguard/v1/sessions/{quoted}",
                f"/agentguard/v1/sessions?most={quoted}",
                f"/agentguard/v1/sessions?tenant={quoted}&order={quoted}",
                f"/agentguard/v1/replicas/{quoted}",
                f"/ui/runs/{quoted}",
            ):
                got = await proxy.get(path)
                assert got.status in (200, 400, 404, 405, 414, 431), f"{path}: {got.status}"
                assert b"root:" not in got.body
                assert b"60481729" not in got.body
            for method, path in (
                ("POST", f"/agentguard/v1/replicas/{quoted}/drain"),
                ("DELETE", f"/agentguard/v1/replicas/{quoted}"),
            ):
                got = await ask(proxy.port, path, method=method)
                assert got.status in (400, 404, 405, 431), f"{method} {path}: {got.status}"
            got = await ask(
                proxy.port, PATHS["chat"], body_for("chat", tools=True), headers=(("agentguard-run", one),)
            )
            assert got.status in (200, 400, 431), f"agentguard-run: {one}: {got.status}"
        assert (await ask(proxy.port, PATHS["chat"], body_for("chat"))).status == 200

    asyncio.run(main())


def test_no_endpoint_accepts_command_address_or_template(scene: tuple[Proxy, FakeBackend]) -> None:
    """Configuration as code (CVE-2026-42271): no request can set a command or an address."""
    proxy, _ = scene
    told = json.loads(asyncio.run(proxy.get("/agentguard/v1/openapi.json")).body)
    bad = (
        "url",
        "command",
        "module",
        "import",
        "template",
        "path",
        "file",
        "script",
        "expr",
        "callback",
        "endpoint",
    )
    names: set[str] = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            properties = value.get("properties")
            if isinstance(properties, dict):
                names.update(properties)
            names.update(one["name"] for one in value.get("parameters", []) if isinstance(one, dict))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(told)
    assert names
    assert not [name for name in names if any(word in name.lower() for word in bad)]
