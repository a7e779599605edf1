"""MCP proxy: the official client and server with the guard between them, and single messages."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from mcp import StdioServerParameters
from mcp.client import Client
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.guard import Guard
from agentguard.integrations.mcp import McpToolGuard, run_stdio_relay
from agentguard.integrations.mcp.stdio_relay import iter_lines
from agentguard.store import Store
from agentguard.testing.contracts.integrations import ContractRequest, ContractRun, list_invocations
from agentguard.testing.guard_check import build_scenarios, run_guard_check
from tests.support.guard_check import INSISTENT_NAMES, list_harmful_names

SERVER = Path(__file__).with_name("mcp_server.py")
TOOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "inputSchema": {
            "type": "object",
            "properties": {argument: {"type": kind}},
            "required": [argument],
        },
        "annotations": annotations,
    }
    for name, argument, kind, annotations in (
        ("find", "where", "string", {"readOnlyHint": True}),
        ("charge", "amount", "integer", {"destructiveHint": True}),
        ("book", "seat", "integer", {}),
    )
]


def _run_client(
    log: Path, calls: list[tuple[str, dict[str, Any]]], *options: str, guarded: bool = True
) -> Any:
    """Call tools with the official client; return the tools, the results and the calls that ran."""
    command = [sys.executable, str(SERVER), str(log)]
    if guarded:
        command = [str(Path(sys.executable).with_name("agentguard")), "mcp", *options, "--", *command]
    log.touch()

    async def drive() -> Any:
        parameters = StdioServerParameters(command=command[0], args=command[1:])
        async with Client(parameters) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    tools, results = asyncio.run(drive())
    return tools, results, log.read_text().splitlines()


def _text(result: Any) -> str:
    return " ".join(block.text for block in result.content)


def test_guarded_server_returns_the_same_tools_and_results(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("find", {"where": "aisle"}), ("book", {"seat": 4})]
    plain = _run_client(tmp_path / "plain", calls, guarded=False)
    assert _run_client(tmp_path / "guarded", calls) == plain


def test_timed_out_destructive_call_is_not_run_again(tmp_path: Path) -> None:
    _, results, ran = _run_client(tmp_path / "log", [("charge", {"amount": 5})] * 2)
    assert ran == ["charge 5"]
    assert "timed out" in _text(results[0])
    assert "[guard]" in _text(results[1])
    assert all(result.is_error for result in results)


def test_stored_run_continues_with_its_effects(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    options = ("--store", url, "--run-id", "invoices")
    _run_client(tmp_path / "log", [("charge", {"amount": 5})], *options)
    _, results, ran = _run_client(tmp_path / "log", [("charge", {"amount": 5})], *options)
    assert ran == ["charge 5"]
    assert "[guard]" in _text(results[0])
    with Store.open(url) as store:
        assert [run.id for run in store.list_runs().rows] == ["invoices"]


def test_server_that_cannot_be_started_is_named() -> None:
    result = CliRunner().invoke(build_app(), ["mcp", "--", "/no/such/server"])
    assert result.exit_code == 2
    assert "/no/such/server" in result.output


def test_exit_status_of_server_is_returned() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    command = [sys.executable, "-c", "import sys; sys.exit(7)"]
    try:
        assert run_stdio_relay(command, McpToolGuard(Guard()), input_fd=reader) == 7
    finally:
        os.close(reader)


@given(st.lists(st.binary(max_size=40).filter(lambda part: b"\n" not in part), max_size=8))
def test_lines_are_split_whatever_their_bytes(parts: list[bytes]) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"\n".join(parts))
    os.close(writer)
    try:
        lines = list(iter_lines(reader))
    finally:
        os.close(reader)
    assert b"".join(lines) == b"\n".join(parts)
    assert all(line.endswith(b"\n") for line in lines[:-1])


class Connection:
    """Client of a `McpToolGuard`, and the server behind it."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = McpToolGuard(guard or Guard(localizer="first_finding"))
        self.ran: list[str] = []
        self._count = 0
        self._exchange("tools/list", {}, {"tools": TOOLS})

    def call(self, name: str, arguments: Any, result: Any = "nothing found") -> dict[str, Any]:
        """Call a tool; ``result`` is its text, a whole result, or an exception as a JSON-RPC error."""
        data = {"content": [{"type": "text", "text": result}]} if isinstance(result, str) else result
        return self._exchange("tools/call", {"name": name, "arguments": arguments}, data)

    def _exchange(self, method: str, params: Any, result: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        head = {"jsonrpc": "2.0", "id": self._count}
        relayed = self.guard.receive_from_client(_line({**head, "method": method, "params": params}))
        if relayed.to_server is None:
            assert relayed.to_client is not None
            return dict(json.loads(relayed.to_client)["result"])
        self.ran.append(params.get("name", method))
        body = {"error": result["error"]} if "error" in result else {"result": result}
        return dict(json.loads(self.guard.receive_from_server(_line({**head, **body}))).get("result", {}))


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _texts(result: dict[str, Any]) -> str:
    return " ".join(block["text"] for block in result["content"])


def test_arguments_that_breach_the_schema_do_not_reach_the_server() -> None:
    connection = Connection()
    refused = connection.call("charge", {"amount": "five"})
    assert refused["isError"]
    assert "[guard]" in _texts(refused)
    assert connection.ran == ["tools/list"]
    connection.call("charge", {"amount": 5})
    assert connection.ran == ["tools/list", "charge"]


def test_repeated_read_gets_a_hint_with_its_result() -> None:
    connection = Connection()
    results = [connection.call("find", {"where": "aisle"}) for _ in range(5)]
    assert [_texts(result) for result in results[:2]] == ["nothing found"] * 2
    assert any("[guard]" in _texts(result) and "nothing found" in _texts(result) for result in results)


def test_polling_is_not_commented() -> None:
    connection = Connection()
    results = [connection.call("find", {"where": "job"}, '{"status": "pending"}') for _ in range(10)]
    assert not any("[guard]" in _texts(result) for result in results)


def test_call_that_the_server_rejected_may_run_again() -> None:
    connection = Connection()
    for _ in range(2):
        connection.call("charge", {"amount": 5}, {"error": {"code": -32602, "message": "request timed out"}})
    assert connection.ran == ["tools/list", "charge", "charge"]


def test_call_that_asks_for_input_runs_again() -> None:
    connection = Connection()
    connection.call("charge", {"amount": 5}, {"resultType": "input_required", "requestState": "s"})
    connection.call("charge", {"amount": 5}, "charged")
    assert connection.ran == ["tools/list", "charge", "charge"]
    assert connection.guard.session is not None
    assert [effect.state.value for effect in connection.guard.session.ledger.effects()] == ["done"]


def test_policy_precedes_annotations() -> None:
    guard = Guard(localizer="first_finding")
    guard.tool(effect="write", idempotent=True, name="charge")(len)
    connection = Connection(guard)
    for _ in range(2):
        connection.call(
            "charge", {"amount": 5}, {"isError": True, "content": [{"type": "text", "text": "timed out"}]}
        )
    assert connection.ran == ["tools/list", "charge", "charge"]


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON\n",
        b"[]\n",
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}\n',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}\n',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 3}}\n',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a", "arguments": 1}}\n',
        b'{"jsonrpc": "2.0", "id": null, "method": "ping"}\n',
        b'{"jsonrpc": "2.0", "id": 1, "result": {"tools": 5}}\n',
    ],
)
def test_other_messages_pass_unchanged(line: bytes) -> None:
    guard = McpToolGuard(Guard())
    assert guard.receive_from_client(line).to_server == line
    assert guard.receive_from_server(line) == line


@given(st.binary(max_size=200))
def test_server_bytes_pass_unchanged(line: bytes) -> None:
    assert MUTE.receive_from_server(line) == line


MUTE = McpToolGuard(Guard(localizer="first_finding"))


def _run_scenario(guard: Guard, played: ContractRun) -> None:
    """Run a scripted agent whose tools are behind a guarded MCP connection."""
    connection = Connection.__new__(Connection)
    connection.guard, connection.ran, connection._count = McpToolGuard(guard), [], 0
    connection._exchange("tools/list", {}, {"tools": TOOLS})
    texts: list[str] = []
    while not played.answer:
        told = ["Book seat 4.", *(text for text in texts if "[guard]" in text)]
        results = [text for text in texts if not text.startswith("[guard]")]
        answer = played.next_answer(ContractRequest("own", told, results))
        if isinstance(answer, str):
            played.answer = answer
            break
        texts += _call_played(connection, played, list_invocations(answer))
    if connection.guard.session is not None:
        played.sessions.append(connection.guard.session)


def _call_played(connection: Connection, played: ContractRun, calls: list[Any]) -> list[str]:
    """Send the calls of a turn before the first result, as a client with parallel calls."""
    texts, running = {}, []
    for place, (name, arguments) in enumerate(calls):
        head = {"jsonrpc": "2.0", "id": f"{len(played.requests)}-{place}"}
        params = {"name": name, "arguments": arguments}
        relayed = connection.guard.receive_from_client(
            _line({**head, "method": "tools/call", "params": params})
        )
        if relayed.to_client is not None:
            texts[place] = _texts(json.loads(relayed.to_client)["result"])
        else:
            running.append((place, head, name, arguments))
    for place, head, name, arguments in running:
        tool = {"book": played.book, "find": played.find}.get(name)
        text = f"Error: there is no tool {name!r}" if tool is None else tool(**arguments)
        result = {"content": [{"type": "text", "text": text}], "isError": text.startswith("Error")}
        line = connection.guard.receive_from_server(_line({**head, "result": result}))
        texts[place] = _texts(json.loads(line)["result"])
    return [texts[place] for place in sorted(texts)]


def test_guarded_connection_breaks_no_scripted_run() -> None:
    report = run_guard_check(_run_scenario, build_scenarios()[::7], lambda: Guard(localizer="first_finding"))
    assert report.to_dict()["broken"] == []
    assert report.list_framework_errors() == []
    assert report.compute_call_growth() <= 0.05
    # An MCP connection does not carry the task, so the guard cannot know that the task names another seat.
    wrong_seat = {name for name in list_harmful_names(report) if name.startswith("wrong_argument/711/")}
    assert list_harmful_names(report) - wrong_seat <= INSISTENT_NAMES
