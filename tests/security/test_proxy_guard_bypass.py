"""Spellings of a path that an endpoint serves as a model API must not avoid the guard, limits or keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.bootstrap import Bootstrap
from agentguard_server.proxy.routes import match_route, normalize_target
from hypothesis import given, strategies as st

from agentguard.testing.fake_backend import FakeBackend
from tests.unit.server.proxy.harness import Got, head_of, read_response, serving

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "Book seat 4."}],
    "tools": [{"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}],
}
SPELLINGS = [
    "/v1/chat/completions/",
    "/v1/%63hat/completions",
    "/v1/chat/%63%6F%6D%70%6c%65tions",
    "/%761/chat/completions",
    "/v1/chat/completions%",
    "/v1/chat/%2563ompletions",
    "/v1/chat//completions",
    "/v1/chat%2Fcompletions",
    "/v1/./chat/completions",
    "/v1/x/%2e%2e/chat/completions",
    "/v1/chat/completions\\",
    "/openai/v1/chat/completions",
    "/openai/v1/%63hat/completions/",
    "/openai/deployments/d/chat/completions",
    "/v1/deployments/d/chat/completions",
    "/openai/deployments/%64/%63hat/completions",
]


def ask(path: str, tmp_path: Path, *, key: str = "", **sections: Any) -> tuple[Got, int, int]:
    """Return the answer of a guarding proxy, what the guard counted, and what the endpoint received.

    The endpoint may receive several calls for one guarded request.
    """

    async def main(url: str) -> tuple[Got, int]:
        document = {
            "backends": {"replicas": [{"name": "a", "url": url}], "health": "off"},
            "guard": {"policy": {"version": 1}},
            "logs": {"output": str(tmp_path / "log.txt")},
            **sections,
        }
        bootstrap = Bootstrap(ProxySettings.parse(document))
        await bootstrap.start()
        got = Got()
        try:
            async with serving(bootstrap.app_state) as (port, _):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                data = json.dumps(BODY).encode()
                headers = {"authorization": f"Bearer {key}"} if key else {}
                writer.write(head_of("POST", path, headers, b"content-length: %d" % len(data)) + data)
                await read_response(reader, "POST", got)
                writer.close()
                assert bootstrap.app_state.interceptor is not None
                return got, bootstrap.app_state.interceptor.counts.guarded
        finally:
            await bootstrap.aclose()

    with FakeBackend() as backend:
        got, guarded = asyncio.run(main(backend.url))
        return got, guarded, len(backend.requests)


@pytest.mark.parametrize("path", SPELLINGS)
def test_every_spelling_of_a_model_path_is_guarded_or_refused(path: str, tmp_path: Path) -> None:
    got, guarded, received = ask(path, tmp_path)
    is_alias = path not in ("/v1/chat/completions%", "/v1/chat/%2563ompletions")
    assert bool(guarded) == bool(received) or not is_alias
    assert (got.status == 200) == bool(received)
    if guarded:
        assert "agentguard-run" in got.headers


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_a_path_avoids_a_spent_token_limit(path: str, tmp_path: Path) -> None:
    limited = {
        "name": "k",
        "hash": "sha256:" + hashlib.sha256(b"ag-k").hexdigest(),
        "limits": {"requests_per_minute": 1, "tokens_per_minute": 1},
    }
    got, guarded, received = ask(path, tmp_path, key="ag-k", keys=[limited])
    assert got.status in (200, 403, 404), got.body
    assert bool(received) == bool(guarded), "an unparsed path reports no tokens, so it is refused"


@given(st.sampled_from(["/v1/chat/completions", "/v1/responses", "/v1/messages"]), st.data())
def test_encoding_of_any_letters_keeps_the_route(path: str, data: st.DataObject) -> None:
    encoded = "".join(
        f"%{ord(one):{data.draw(st.sampled_from(['02x', '02X']))}}"
        if one.isalnum() and data.draw(st.booleans())
        else one
        for one in path
    )
    target, _ = normalize_target(encoded.encode(), b"")
    assert target.decode() == path
    assert match_route("POST", target).kind == "model"


@given(st.binary(max_size=60))
def test_normalized_path_is_stable_and_opens_no_admin_path(tail: bytes) -> None:
    once, query = normalize_target(b"/v1/" + tail, b"")
    again, _ = normalize_target(once, query)
    if b"%25" not in tail:
        assert match_route("POST", again) == match_route("POST", once)
    assert match_route("POST", once).kind in ("model", "through", "none", "admin")
    assert once.startswith(b"/v1/")
