"""Driver of the Claude Agent SDK: its real process with the guard's hooks, and a scripted Messages API."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import (
    TASK,
    ContractRequest,
    ContractRun,
    list_invocations,
)
from tests.unit.integrations.anthropic_server import Body, events, message, says, uses
from tests.unit.integrations.openai_server import serving

SERVER = "desk"
PREFIX = f"mcp__{SERVER}__"
OFFLINE = {"ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def claude_agent_query(guard: Guard, played: ContractRun, **settings: Any) -> None:
    """Run an agent of the SDK by the query with rollbacks."""
    asyncio.run(_run_agent(guard, played, None, settings, can_roll_back=True))


def claude_agent_sdk(guard: Guard, played: ContractRun, *, denial: Any = None, **settings: Any) -> None:
    """Run an agent of the SDK, with its tools as an MCP server of the SDK.

    Args:
        guard: the guard.
        played: the scripted run.
        denial: hook of the user before each call.
        settings: arguments of `Guard.claude_agent_sdk`.
    """
    asyncio.run(_run_agent(guard, played, denial, settings))


async def _run_agent(
    guard: Guard, played: ContractRun, denial: Any, settings: dict[str, Any], *, can_roll_back: bool = False
) -> None:
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        HookMatcher,
        ResultMessage,
        create_sdk_mcp_server,
        query,
        tool,
    )

    for name, effect in list(guard.tools.items()):  # the SDK adds the name of the server
        guard.tool(effect=effect.effect, repeatable=effect.repeatable, name=PREFIX + name)(len)

    @tool("book", "Book a seat.", {"seat": int})
    async def book(arguments: Any) -> Any:
        return _build_result(played.book(arguments["seat"]))

    @tool("find", "Find a seat.", {"where": str})
    async def find(arguments: Any) -> Any:
        return _build_result(played.find(arguments["where"]))

    with serving(lambda body: _answer(played, body)) as server, tempfile.TemporaryDirectory() as folder:
        options = ClaudeAgentOptions(
            mcp_servers={SERVER: create_sdk_mcp_server(SERVER, tools=[book, find])},
            allowed_tools=[f"{PREFIX}book", f"{PREFIX}find"],
            tools=[],
            hooks={"PreToolUse": [HookMatcher(hooks=[denial])]} if denial is not None else None,
            cwd=folder,
            env={
                **OFFLINE,
                "CLAUDE_CONFIG_DIR": f"{folder}/claude",
                "ANTHROPIC_BASE_URL": server.url.removesuffix("/v1"),
            },
        )
        settings |= {"on_run": played.sessions.append, "tools": {SERVER: [book, find]}}
        messages = (
            guard.claude_agent_query(TASK, options, **settings)
            if can_roll_back
            else query(prompt=TASK, options=guard.claude_agent_sdk(options, **settings))
        )
        async for received in messages:
            if isinstance(received, ResultMessage):
                played.answer = received.result or ""


def _build_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "is_error": text.startswith("Error")}


def _answer(played: ContractRun, body: Body) -> Any:
    texts = list(_iter_guard_texts(body["messages"]))
    results = [text for text in _iter_results(body["messages"]) if "[guard]" not in text]
    answer = played.next_answer(ContractRequest("own", [TASK, *texts], results))
    number = len(played.requests)
    calls = [
        uses(PREFIX + name, f"call-{number}-{place}", **arguments)
        for place, (name, arguments) in enumerate(list_invocations(answer))
    ]
    made = message(*(calls or [says(answer)]), id=f"msg-{number}")
    return events(made) if body.get("stream") else made


def _iter_guard_texts(messages: Sequence[Body]) -> Iterator[str]:
    for one in messages:
        for block in _list_blocks(one):
            text = _read_text(block)
            if one["role"] != "assistant" and "[guard]" in text:
                yield text


def _iter_results(messages: Sequence[Body]) -> Iterator[str]:
    for one in messages:
        for block in _list_blocks(one):
            if block["type"] == "tool_result":
                yield _read_text(block)


def _list_blocks(one: Body) -> list[Body]:
    content = one["content"]
    return [says(content)] if isinstance(content, str) else content


def _read_text(block: Body) -> str:
    content = block.get("content", block.get("text", ""))
    if isinstance(content, list):
        return "\n".join(str(one.get("text", "")) for one in content)
    return content if isinstance(content, str) else json.dumps(content)
