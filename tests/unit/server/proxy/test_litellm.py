"""LiteLLM's generic guardrail: its documented requests over a real guard, and LiteLLM's own client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.auth.authorization import Caller, Keyring
from agentguard_server.proxy.config.schema import ClientLimits, KeyOptions
from agentguard_server.proxy.guard.inline_guard import InlineGuard
from agentguard_server.proxy.guard.options import GuardOptions
from agentguard_server.proxy.litellm import PATH, REQUEST_SCHEMA, LiteLLMGuardrail
from agentguard_server.proxy.litellm.request import parse_guardrail_request
from hypothesis import given, settings, strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from agentguard.config.policy import Policy
from agentguard.errors import InputError
from tests.unit.server.proxy.guard.scripted_model import CHAT, Turn, calls

TASK: Any = {"role": "user", "content": "Book seat 4."}
ROLLBACK = {"recover": {"on_fail": ["rollback"]}}
STOP = {"recover": {"on_fail": ["stop"]}}


def endpoint(policy: dict[str, Any] | None) -> LiteLLMGuardrail:
    guarding = None
    if policy is not None:
        tools = {"book": {"effect": "write"}, "find": {"effect": "read"}}
        guarding = InlineGuard(
            GuardOptions(
                policy=Policy.parse({"localizer": {"name": "first_finding"}, "tools": tools, **policy})
            )
        )
    return LiteLLMGuardrail(lambda: guarding)


@dataclass(kw_only=True)
class LiteLlm:
    """LiteLLM's guardrail with a scripted model behind it."""

    guardrail: LiteLLMGuardrail
    turns: Iterable[Turn]
    tenant: str = ""
    sent: list[list[Any]] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0

    async def ask(self, history: list[Any]) -> dict[str, Any] | str:
        """Return the answer's message, or the reason of the block."""
        self.calls += 1
        body = CHAT.body(history)
        said = {
            "litellm_call_id": f"call-{self.calls}",
            "litellm_trace_id": f"trace-{self.calls}",
            "request_data": {},
            "model": "m",
            "litellm_version": "1.106.2",
            "images": None,
        }
        texts = [one["content"] for one in history if one.get("content")]
        verdict = await self.post(
            {
                **said, "input_type": "request", "structured_messages": history,
                "texts": texts, "tools": body["tools"], "tool_calls": None,
            }
        )  # fmt: skip
        if verdict["action"] == "BLOCKED":
            return str(verdict["blocked_reason"])
        self.sent.append(verdict.get("structured_messages") or history)
        message: dict[str, Any] = CHAT.answer(next(iter(self.turns)))["choices"][0]["message"]
        verdict = await self.post(
            {
                **said, "input_type": "response", "texts": [message["content"]] if message["content"] else [],
                "tool_calls": message.get("tool_calls"), "structured_messages": None,
            }
        )  # fmt: skip
        if verdict["action"] == "BLOCKED":
            return str(verdict["blocked_reason"])
        if verdict.get("texts"):
            message = {**message, "content": verdict["texts"][0]}
        return message

    async def post(self, body: Any) -> dict[str, Any]:
        status, verdict = await post(self.guardrail, body, tenant=self.tenant)
        assert status == 200
        self.verdicts.append(verdict)
        return verdict

    async def agent(self, history: list[Any], *, most: int = 14) -> str:
        """Run a loop that repeats its request if LiteLLM refuses it, as clients do."""
        for _ in range(most):
            message = await self.ask(history)
            if isinstance(message, str):
                continue
            history.append(message)
            called = message.get("tool_calls") or ()
            history.extend(CHAT.result(call["id"], "nothing found") for call in called)
            if not called:
                return str(message["content"])
        return "it did not end"


async def post(
    guardrail: LiteLLMGuardrail, body: Any, *, tenant: str = "", caller: Caller | None = None
) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def receive() -> Any:
        return {"type": "http.request", "body": raw, "more_body": False}

    who = caller or Caller(KeyOptions(name="k", hash="sha256:" + "0" * 64, tenant=tenant))
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "agentguard.caller": who}
    response = await guardrail(Request(scope, receive))
    return response.status_code, json.loads(bytes(response.body))


def played(turns: Iterable[Turn], policy: dict[str, Any] | None, **more: Any) -> LiteLlm:
    return LiteLlm(guardrail=endpoint(policy), turns=iter(turns), **more)


def test_loop_is_rolled_back_in_messages_of_later_requests() -> None:
    world = played([*calls("find", 3), ("call", "book", "b"), ("say", "Done.")], ROLLBACK)
    assert asyncio.run(world.agent([TASK])) == "Done."
    last = json.dumps(world.sent[-1])
    assert [id for id in ("find0", "find1", "find2", "b") if f'"{id}"' in last] == ["find0", "b"]
    assert "[guard]" in last
    assert {one["action"] for one in world.verdicts} == {"NONE", "GUARDRAIL_INTERVENED"}


def test_forbidden_call_is_blocked_and_requested_again() -> None:
    world = played([("call", "fly", "x"), ("call", "book", "b"), ("say", "Done.")], ROLLBACK)
    assert asyncio.run(world.agent([TASK])) == "Done."
    (blocked,) = [one for one in world.verdicts if one["action"] == "BLOCKED"]
    assert blocked["blocked_reason"].startswith("[guard]")
    assert "[guard]" in json.dumps(world.sent[1]), "the model is told what to do instead"
    assert "fly" not in [call for one in world.sent[-1] for call in one.get("tool_calls") or ()]


def test_stopped_run_is_blocked_before_model_call() -> None:
    world = played(calls("find", 9), STOP)
    history = [TASK]
    asyncio.run(world.agent(history, most=6))
    assert world.verdicts[-1]["action"] == "BLOCKED"
    assert "The run was stopped" in world.verdicts[-1]["blocked_reason"]
    assert len(world.sent) < 6


def test_clean_request_passes_unchanged() -> None:
    world = played([("call", "book", "b"), ("say", "Done.")], ROLLBACK)
    assert asyncio.run(world.agent([TASK])) == "Done."
    assert world.verdicts == [{"action": "NONE"}] * 4


def test_request_without_guard_or_messages_is_not_judged() -> None:
    async def ask() -> None:
        for guardrail in (endpoint(None), endpoint(ROLLBACK)):
            for body in (
                {"input_type": "request", "texts": ["an embedding"], "litellm_call_id": "c"},
                {"input_type": "response", "texts": ["an answer nobody asked for"], "litellm_call_id": "d"},
            ):
                assert await post(guardrail, body) == (200, {"action": "NONE"})

    asyncio.run(ask())


def test_growing_answer_is_judged_each_time_and_block_persists() -> None:
    async def ask() -> None:
        guardrail = endpoint(ROLLBACK)
        request = {
            "input_type": "request", "litellm_call_id": "c", "structured_messages": [TASK],
            "tools": CHAT.body([])["tools"], "texts": [],
        }  # fmt: skip
        assert (await post(guardrail, request))[1] == {"action": "NONE"}
        fly = CHAT.answer(("call", "fly", "x"))["choices"][0]["message"]["tool_calls"]
        good = CHAT.answer(("call", "book", "b"))["choices"][0]["message"]["tool_calls"]

        async def answered(**of: Any) -> str:
            body = {"input_type": "response", "litellm_call_id": "c", **of}
            return str((await post(guardrail, body))[1]["action"])

        assert await answered(texts=["Seat 4"]) == "NONE"
        assert await answered(texts=["Seat 4 is free."], tool_calls=good) == "NONE"
        assert await answered(texts=[], tool_calls=fly) == "BLOCKED"
        assert await answered(texts=[], tool_calls=good) == "BLOCKED"

    asyncio.run(ask())


def test_tenants_never_share_requests() -> None:
    async def ask() -> None:
        guardrail = endpoint(ROLLBACK)
        request = {
            "input_type": "request", "litellm_call_id": "c", "structured_messages": [TASK],
            "tools": CHAT.body([])["tools"],
        }  # fmt: skip
        await post(guardrail, request, tenant="a")
        fly = CHAT.answer(("call", "fly", "x"))["choices"][0]["message"]["tool_calls"]
        answer = {"input_type": "response", "litellm_call_id": "c", "tool_calls": fly}
        assert (await post(guardrail, answer, tenant="b"))[1] == {"action": "NONE"}
        assert (await post(guardrail, answer, tenant="a"))[1]["action"] == "BLOCKED"

    asyncio.run(ask())


def test_key_limits_apply() -> None:
    async def ask() -> list[int]:
        limits = ClientLimits(requests_per_minute=2)
        key = KeyOptions(name="k", hash="sha256:" + "0" * 64, limits=limits)
        _, caller = Keyring([key]).find_by_name("k") or (b"", None)
        body = {"input_type": "request"}
        guardrail = endpoint(ROLLBACK)
        return [(await post(guardrail, body, caller=caller))[0] for _ in range(4)]

    assert asyncio.run(ask()) == [200, 200, 429, 429]


def test_call_cache_is_bounded_and_cleared() -> None:
    async def ask() -> None:
        guardrail = endpoint(ROLLBACK)
        for number in range(20):
            body = {
                "input_type": "request", "litellm_call_id": f"c{number}", "structured_messages": [TASK],
                "tools": CHAT.body([])["tools"],
            }  # fmt: skip
            await post(guardrail, body)
        assert len(guardrail._calls) == 20
        guardrail.close()
        assert len(guardrail._calls) == 0

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "not valid JSON"),
        (b"[]", "input_type"),
        (b'{"input_type": "other"}', "input_type"),
        (b'{"input_type": "request", "structured_messages": {}}', "structured_messages"),
        (b'{"input_type": "request", "structured_messages": ["x"]}', "structured_messages"),
        (b'{"input_type": "response", "texts": [1]}', "texts"),
        (b'{"input_type": "response", "litellm_call_id": 1}', "litellm_call_id"),
        (b'{"input_type": "response", "request_headers": []}', "request_headers"),
    ],
)
def test_invalid_request_is_rejected_by_field(body: bytes, field: str) -> None:
    with pytest.raises(InputError, match=field):
        parse_guardrail_request(body)

    async def ask() -> int:
        return int((await post(endpoint(ROLLBACK), body))[0])

    assert asyncio.run(ask()) == 400


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(list(REQUEST_SCHEMA["properties"])), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_arbitrary_body_is_parsed_or_rejected(value: Any) -> None:
    with_type = {"input_type": "response", **value} if isinstance(value, dict) else value
    try:
        parse_guardrail_request(json.dumps(with_type).encode())
    except InputError:
        return


def test_run_is_named_by_header_or_parameter() -> None:
    for more in (
        {"request_headers": {"Agentguard-Run": "mine", "authorization": "[present]"}},
        {"additional_provider_specific_params": {"agentguard-run": "mine"}},
    ):
        assert (
            parse_guardrail_request(json.dumps({"input_type": "request", **more}).encode()).run_id == "mine"
        )
    hidden = {"request_headers": {"agentguard-run": "[present]"}}
    assert parse_guardrail_request(json.dumps({"input_type": "request", **hidden}).encode()).run_id == ""


# -- LiteLLM itself, if it is installed: AGENTGUARD_LITELLM names a Python that has litellm[proxy].


def litellm_python() -> str:
    found = os.environ.get("AGENTGUARD_LITELLM", "")
    if not found:
        pytest.skip("AGENTGUARD_LITELLM names no Python with litellm[proxy]: see docs/litellm.md")
    return found


CLIENT = Path(__file__).with_name("litellm_client.py")


@pytest.mark.slow
def test_litellm_client_blocks_and_rewrites(tmp_path: Path) -> None:
    python = litellm_python()
    import socket
    import threading

    import uvicorn

    guardrail = endpoint(ROLLBACK)

    async def judge(request: Request) -> Any:
        return await guardrail(request)

    app = Starlette(routes=[Route(PATH, judge, methods=["POST"])])

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    alone = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it looks for prices on the network
    }
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(asgi, log_config=None, lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            done = subprocess.run(
                [python, str(CLIENT), url], capture_output=True, text=True, timeout=240, cwd=tmp_path,
                env=alone,
            )  # fmt: skip
        finally:
            server.should_exit = True
            thread.join(20)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["passed"] == "book"
    assert told["blocked"].startswith("[guard]")
    assert told["stays"] == [TASK["content"]]
    assert any("[guard]" in text for text in told["rewritten"])
