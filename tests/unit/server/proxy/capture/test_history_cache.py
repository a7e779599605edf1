"""The cache of histories decodes every body as a complete decoding does, whatever came before."""

from __future__ import annotations

import json
from typing import Any

from agentguard_server.proxy.capture.history_cache import HistoryCache
from agentguard_server.proxy.guard.inline_guarded_request import decode_body
from hypothesis import given, strategies as st

from agentguard.intercept.conversation import build_prefix_keys
from agentguard.intercept.guarded_apis import GUARDED_APIS

SCOPE = ("t", "chat", "")
ADAPTER = GUARDED_APIS["chat"].adapter
texts = st.text(max_size=12) | st.sampled_from(
    ['"messages"', "}, {", '"assistant"', "]}", "\\u0000", "a" * 5000]
)
calls = st.lists(
    st.builds(lambda text: {"id": "c", "function": {"name": "f", "arguments": text}}, texts), max_size=2
)
messages = st.builds(
    lambda content, role, tools: (
        {"content": content, "role": role, "tool_calls": tools}
        if tools
        else {"role": role, "content": content}
    ),
    texts,
    st.sampled_from(["user", "assistant", "tool", "system"]),
    calls,
)
layouts = st.tuples(
    st.dictionaries(st.sampled_from(["model", "stream", "n", "tools"]), texts | calls, max_size=3),
    st.dictionaries(st.sampled_from(["model", "tools", "user"]), texts | calls, max_size=2),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]),
)


def read(cache: HistoryCache, raw: bytes, scope: tuple[str, ...] = SCOPE) -> bool:
    """Decode a body and store it, compare it with a complete decoding; return whether its start was known."""
    request = cache.decode(scope, raw)
    expected = decode_body(raw)
    assert (request and request.body) == expected
    if request is None or not isinstance(request.body.get("messages"), list):
        return False
    items = request.body["messages"]
    keys = build_prefix_keys(items, ADAPTER.build_item_key, known_keys=request.known_keys)
    assert keys == build_prefix_keys(items, ADAPTER.build_item_key)
    cache.store(scope, raw, request, keys)
    return bool(request.known_keys)


@given(st.lists(messages, min_size=1, max_size=8), layouts, st.lists(st.integers(1, 3), max_size=4))
def test_decode_of_growing_history_equals_complete_decoding(
    history: list[Any], layout: Any, steps: list[int]
) -> None:
    head, tail, separators = layout
    cache, count = HistoryCache(min_bytes=0), 1
    for step in [0, *steps]:
        count += step
        fields = {**head, "messages": history[:count], **{k: v for k, v in tail.items() if k not in head}}
        read(cache, json.dumps(fields, separators=separators).encode())


@given(
    st.lists(
        st.sampled_from([b'"messages":', b"[", b"]", b"{", b"}", b",", b'"assistant"', b"0"]), max_size=9
    )
)
def test_decode_of_any_bytes_after_known_history_equals_complete_decoding(pieces: list[bytes]) -> None:
    cache = HistoryCache(min_bytes=0)
    read(cache, b'{"model":"m","messages":[{"role":"user"},{"role":"user"}]}')
    known = b'{"model":"m","messages":[{"role":"user"},{"role":"user"}'
    read(cache, known + b"".join(pieces))
    read(HistoryCache(min_bytes=0), b"".join(pieces))


def test_decode_uses_known_history_of_same_scope_only() -> None:
    cache = HistoryCache(min_bytes=0)
    first = [{"role": "user", "content": "hi"}]
    longer = [*first, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "and?"}]
    bodies = [json.dumps({"model": "m", "messages": part}).encode() for part in (first, longer)]
    assert not read(cache, bodies[0])
    assert not read(cache, bodies[1], ("other", "chat", ""))
    assert read(cache, bodies[1])


def test_short_request_is_decoded_completely() -> None:
    cache = HistoryCache()
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert not any(read(cache, json.dumps({"messages": history[:count]}).encode()) for count in (1, 2))


def test_store_beyond_limit_drops_oldest_history() -> None:
    cache = HistoryCache(2500, min_bytes=0)
    chats = [[{"role": "user", "content": f"{n}" * 150}] for n in range(3)]
    for chat in chats:
        read(cache, json.dumps({"messages": chat}).encode())
    longer = [
        json.dumps({"messages": [*chat, {"role": "assistant", "content": "x"}]}).encode() for chat in chats
    ]
    assert [read(cache, raw) for raw in (longer[2], longer[0])] == [True, False]
