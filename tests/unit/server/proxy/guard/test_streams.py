"""Streams with any chunk borders: released bytes equal received bytes, and parsed text is complete."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agentguard_server.proxy.capture.correlator import _NO_CANDIDATES
from agentguard_server.proxy.guard.inline_guard import InlineGuard
from agentguard_server.proxy.guard.inline_guarded_request import InlineGuardedRequest
from agentguard_server.proxy.guard.options import GuardOptions
from hypothesis import given, settings, strategies as st

from agentguard.config.policy import Policy
from agentguard.intercept.adapters.anthropic_stream import AnthropicStreamBuffer
from agentguard.intercept.guarded_apis import GUARDED_APIS as GUARDABLE
from tests.unit.integrations import anthropic_server as claude
from tests.unit.server.proxy.guard.scripted_model import APIS, MESSAGES, Api, Played, Turn

TASK: Any = {"role": "user", "content": "Book seat 4."}
POLICY = Policy.parse({"localizer": {"name": "first_finding"}, "enabled_detectors": []})

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
turns = st.one_of(
    st.tuples(st.just("say"), words), st.tuples(st.just("call"), st.just("find"), st.just("f"), words)
)
cuts = st.lists(st.integers(1, 400), max_size=12)


@pytest.fixture(scope="module")
def inline() -> InlineGuard:
    return InlineGuard(GuardOptions(policy=POLICY))


def opened(inline: InlineGuard, api: Api) -> tuple[Played, InlineGuardedRequest]:
    world = Played(api=api, guarding=inline, turns=iter(()))
    made = inline.intercept(world.asked(json.dumps(api.body([TASK])).encode(), stream=True))
    assert isinstance(made, InlineGuardedRequest)
    return world, made


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    made = []
    for size in at:
        made.append(data[:size])
        data = data[size:]
    return [*made, data]


@pytest.mark.parametrize("api", list(APIS.values()), ids=list(APIS))
@given(turn=turns, at=cuts)
@settings(max_examples=40, deadline=None)
def test_released_bytes_equal_received_bytes(
    inline: InlineGuard, api: Api, turn: Turn, at: list[int]
) -> None:
    data = b"".join(api.stream(api.answer(turn)))

    async def play() -> bytes:
        world, guarded = opened(inline, api)
        hold = guarded.create_stream_buffer()
        shown = b"".join(hold.feed(piece) for piece in pieces(data, at))
        rest, again = await hold.finish(world._model)
        guarded.settle()
        assert not again
        return shown + rest

    assert asyncio.run(play()) == data


@pytest.mark.parametrize("api", list(APIS.values()), ids=list(APIS))
@given(turn=turns)
@settings(max_examples=40, deadline=None)
def test_streamed_answer_parses_like_whole_answer(inline: InlineGuard, api: Api, turn: Turn) -> None:
    made = api.answer(turn)
    dialect = GUARDABLE[api.name].adapter

    async def read() -> dict[str, Any] | None:
        _, guarded = opened(inline, api)
        hold = GUARDABLE[api.name].stream_buffer_class(guarded._guarded, _NO_CANDIDATES)
        hold.feed(dialect.encode_stream(made, include_usage=True))
        whole = hold.build_answer()
        guarded.settle()
        return whole

    told = asyncio.run(read())
    assert told is not None
    assert api.calls(told) == api.calls(made)
    assert api.text(told) == api.text(made)
    answers = [dialect.extract_answer_items(one) for one in (made, told)]
    steps = [dialect.build_step(one or [], "assistant") for one in answers]
    assert steps[0].tool_calls == steps[1].tool_calls
    assert dialect.extract_usage(told) == dialect.extract_usage(made)


def test_blocks_of_every_kind_round_trip(inline: InlineGuard) -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "x", "url": "u"}]}
    cited = {"type": "text", "text": "So it is.", "citations": [{"type": "c", "cited_text": "y"}]}
    hidden = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    blocks = [claude.thinks("Hm."), hidden, search, found, cited, claude.uses("find", "t", where="x")]
    made = claude.message(*blocks)

    async def read() -> dict[str, Any] | None:
        _, guarded = opened(inline, MESSAGES)
        hold = AnthropicStreamBuffer(guarded._guarded, _NO_CANDIDATES)
        hold.feed(GUARDABLE["messages"].adapter.encode_stream(made, include_usage=True))
        whole = hold.build_answer()
        guarded.settle()
        return whole

    told = asyncio.run(read())
    assert told is not None
    assert told["content"] == blocks
