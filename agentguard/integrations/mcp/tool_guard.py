"""Guard of the tool calls in the messages of one MCP connection, without input or output.

The messages contain calls and results, but no model requests:

- The guard cannot roll back turns. It refuses a call with an ``isError`` result, or adds a text to a result.
- The guard cannot end the client's run. A plan that stops the run refuses one call.
- All other messages pass unchanged, byte for byte.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from agentguard.recover.agent_messages import format_call_refusal
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.recover.tool_effects import ToolEffect, read_stated_effect
from agentguard.runtime.duplicate_calls import find_equal_call
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE, collect_messages
from agentguard.trajectory.formats.sdk import parse_tool_specs
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

CAPABILITIES = Capabilities(reject=True, send_message=True, stop=True)

_INVALID_REQUEST_CODES = frozenset({-32700, -32600, -32601, -32602})
"""JSON-RPC errors after which the server has not run the tool."""

_MAX_ID_CHARS = 200

_LOGGER = logging.getLogger("agentguard.mcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedMessage:
    """Lines that the relay sends for a message of the client.

    Attributes:
        to_server: line for the server; None if the guard withholds the message.
        to_client: line for the client; None if the guard does not respond.
    """

    to_server: bytes | None = None
    to_client: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenCall:
    """Call without a response of the server yet; ``notes`` are texts of the guard for its result."""

    turn: Step
    claim: EffectClaim
    notes: tuple[str, ...]


class McpToolGuard:
    """Guard of one connection; thread-safe.

    Args:
        guard: the guard whose rules apply.
        agent: name of the client in the trajectory.
        run_id: ID of the run; random by default.
        resume: resume the run with this ID, if the guard's store has it.
    """

    def __init__(
        self, guard: Guard, *, agent: str = "client", run_id: str | None = None, resume: bool = False
    ) -> None:
        self._guard, self._agent, self._resume = guard, agent, resume
        self._run_id = run_id or f"mcp-{uuid.uuid4().hex[:16]}"
        self._lock = threading.Lock()
        self._tools: dict[str, ToolSpec] = {}
        self._effects: dict[str, ToolEffect] = {}
        self._listings: set[bytes] = set()
        self._open_calls: dict[bytes, _OpenCall] = {}
        self._results: dict[tuple[str, int], dict[str, Any]] = {}
        self.session: Session | None = None
        """Session of the run; None before the first tool call."""

    def receive_from_client(self, line: bytes) -> RelayedMessage:
        """Process a message (one line) of the client; judge it if it is a tool call."""
        message = _parse_object(line)
        if message is None or "id" not in message:
            return RelayedMessage(to_server=line)
        key = orjson.dumps(message["id"])
        with self._lock:
            if message.get("method") == "tools/list":
                self._listings.add(key)
            call = _parse_call(message) if message.get("method") == "tools/call" else None
            if call is None:
                return RelayedMessage(to_server=line)
            try:
                result = self._open_call(key, call)
            except Exception as error:  # a failure of the guard must not fail the call
                result = self._handle_failure(error)
        if result is None:
            return RelayedMessage(to_server=line)
        response = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return RelayedMessage(to_client=orjson.dumps(response) + b"\n")

    def receive_from_server(self, line: bytes) -> bytes:
        """Process a message (one line) of the server; return the line for the client."""
        message = _parse_object(line)
        if message is None or "id" not in message or "method" in message:
            return line
        key = orjson.dumps(message["id"])
        with self._lock:
            open_call = self._open_calls.pop(key, None)
            try:
                if key in self._listings:
                    self._listings.discard(key)
                    self._record_tools(message.get("result"))
                if open_call is not None:
                    self._close_call(open_call, message)
            except Exception as error:  # a failure of the guard must not withhold the response
                self._handle_failure(error)
        if open_call is None:
            return line
        result = message.get("result")
        if not open_call.notes or not isinstance(result, dict):
            return line
        content = result.get("content")
        blocks = [*(content if isinstance(content, list) else []), *map(_build_text, open_call.notes)]
        return orjson.dumps({**message, "result": {**result, "content": blocks}}) + b"\n"

    def close(self) -> None:
        """End the run, for example because the connection was closed."""
        with self._lock:
            if self.session is not None:
                self.session.end(is_refusable=False)

    def _open_call(self, key: bytes, call: ToolCall) -> dict[str, Any] | None:
        """Judge a call and claim it; return None if it may run, otherwise the guard's result."""
        if self.session is None:
            self.session = self._start_session()
        session = self.session
        plan = session.check_boundary()
        notes = tuple(collect_messages(session, plan)) if plan is not None else ()
        turn = Step(index=0, source=Source.AGENT, agent=self._agent, content="", tool_calls=(call,))
        running = (one.turn.tool_calls[0] for one in self._open_calls.values())
        equal = find_equal_call(call, running, session.ledger)
        proposed = turn if equal is None else replace(turn, tool_calls=(equal, call))
        plan = None if session.stop_reason is not None else session.propose(proposed)
        if plan is not None or session.stop_reason is not None:
            refusal = map(format_call_refusal, collect_messages(session, plan)) if plan is not None else ()
            reason, session.stop_reason = session.stop_reason, None
            texts = [*notes, *refusal, *([f"[guard] The call was refused: {reason}"] if reason else [])]
            return _build_result(texts, is_error=True)
        claim = session.begin_tool(call.name, call.arguments or {})
        if claim.decision is ExecutionDecision.RUN:
            self._open_calls[key] = _OpenCall(turn=turn, claim=claim, notes=notes)
            return None
        if claim.decision is ExecutionDecision.REUSE:
            text = claim.effect.result or ""
            result = self._results.get(claim.effect.id) or _build_result([text], is_error=False)
        else:
            text = UNKNOWN_OUTCOME_MESSAGE
            result = _build_result([text], is_error=True)
        self._commit(session, turn, text, is_error=None)
        return {**result, "content": [*result["content"], *map(_build_text, notes)]}

    def _handle_failure(self, error: Exception) -> dict[str, Any] | None:
        """Log a failure of the guard; return the refusal of the call if the policy fails closed."""
        _LOGGER.warning("the guard failed on a message: %s", type(error).__name__)
        if self._guard.components.recover.on_guard_error != "fail_closed":
            return None
        return _build_result(["[guard] The call was refused: the guard failed."], is_error=True)

    def _close_call(self, open_call: _OpenCall, message: Mapping[str, Any]) -> None:
        """Record the response to a call in the ledger and in the run."""
        session = self.session
        assert session is not None
        result, error = message.get("result"), message.get("error")
        if isinstance(result, dict) and result.get("resultType", "complete") != "complete":
            session.end_tool(
                open_call.claim, "", is_refused=True
            )  # the server needs more input; the client repeats the call
            return
        if isinstance(result, dict):
            text, has_failed, is_refused = _read_text(result), result.get("isError") is True, False
        else:
            data = error if isinstance(error, dict) else {}
            text, has_failed = str(data.get("message", "")), True
            is_refused = data.get("code") in _INVALID_REQUEST_CODES
        flag = has_failed or None
        session.end_tool(open_call.claim, text, is_refused=is_refused, has_failed=flag)
        effect = open_call.claim.effect
        if isinstance(result, dict) and session.ledger.get_tool_effect(effect.tool).key:
            self._results[effect.id] = result
        self._commit(session, open_call.turn, text, is_error=flag)

    def _commit(self, session: Session, turn: Step, text: str, *, is_error: bool | None) -> None:
        call = turn.tool_calls[0]
        observation = Observation(content=text, call_id=call.id, tool=call.name, is_error=is_error)
        session.commit(replace(turn, observations=(observation,)))

    def _start_session(self) -> Session:
        meta = Trajectory(
            id=self._run_id, format="event_log", task="", steps=(), tools=tuple(self._tools.values())
        )
        session = self._guard.session(meta, CAPABILITIES, resume=self._resume)
        for name, effect in self._effects.items():
            session.ledger.declare_tool(name, effect)
        return session

    def _record_tools(self, result: Any) -> None:
        """Record the tools of a page of ``tools/list``; the policy's declarations take precedence."""
        tools = result.get("tools") if isinstance(result, dict) else None
        for data in tools if isinstance(tools, list) else ():
            if not isinstance(data, dict) or not isinstance(data.get("name"), str):
                continue
            spec = parse_tool_specs([data], "tools")[0]
            self._tools[spec.name] = spec
            effect = read_stated_effect(data.get("annotations"))
            if effect is not None and spec.name not in self._guard.tools:
                self._effects[spec.name] = effect
                if self.session is not None:
                    self.session.ledger.declare_tool(spec.name, effect)
        if self.session is not None:
            self.session.add_tools(self._tools.values())


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return message if isinstance(message, dict) else None


def _parse_call(message: Mapping[str, Any]) -> ToolCall | None:
    """Return the call of a request; None if the request is malformed, so that the server reports it."""
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    arguments = params.get("arguments") if isinstance(params, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        return None
    return ToolCall(id=str(message["id"])[:_MAX_ID_CHARS], name=name, arguments=arguments or {})


def _read_text(result: Mapping[str, Any]) -> str:
    """Return the text of a result; content of another type becomes its type in brackets."""
    content = result.get("content")
    texts = []
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            text = block.get("text")
            texts.append(text if isinstance(text, str) else f"[{block.get('type', 'content')}]")
    if not texts and "structuredContent" in result:
        return orjson.dumps(result["structuredContent"]).decode()
    return "\n".join(texts)


def _build_result(texts: list[str], *, is_error: bool) -> dict[str, Any]:
    # Clients of revision 2026 demand resultType; those of earlier revisions ignore unknown fields.
    content = [_build_text(text) for text in texts]
    return {"content": content, "isError": is_error, "resultType": "complete"}


def _build_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
