"""Hooks of the Claude Agent SDK that guard the tool calls and the end of each run.

The agent's process calls a hook and waits for its output:

- ``PreToolUse`` judges a call before it runs; a denial gives the reason to the model.
- ``PostToolUse`` and ``PostToolUseFailure`` record the outcome of the effect.
- ``PostToolBatch`` commits the turn. A recovery adds a text for the model, or ends the run.
- ``Stop`` judges the last message. If the guard refuses the end, the run continues.
- ``UserPromptSubmit`` begins a run. Each sub-agent has its own run.

Hooks cannot remove turns; `agentguard.integrations.claude_agent_sdk.query` forks the SDK's session instead.
Hooks do not receive the texts of turns with calls.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
from claude_agent_sdk import ClaudeAgentOptions
from claude_agent_sdk.types import HookMatcher

from agentguard import _sync_async
from agentguard.errors import RecoveryError
from agentguard.integrations.claude_agent_sdk.tool_specs import build_tool_specs, read_effects
from agentguard.recover.actions import Restart, Rewind
from agentguard.recover.agent_messages import format_call_refusal
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.tool_effects import ToolEffect
from agentguard.runtime.duplicate_calls import find_equal_call
from agentguard.runtime.session import Session, aend_session, resolve_turn
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE, AskCallback, acollect_messages
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

_ASK_TIMEOUT_S = 24 * 3600.0
_REFUSED_ERRORS = ("Input validation error", "InputValidationError", "<tool_use_error>")
"""Prefixes of the errors of calls whose tool did not run."""

_LOGGER = logging.getLogger("agentguard.claude_agent_sdk")


def build_guarded_options(
    guard: Guard, options: ClaudeAgentOptions | None = None, **settings: Any
) -> ClaudeAgentOptions:
    """Return a copy of the options of an agent with the hooks of a guard before its own hooks.

    Args:
        guard: the guard whose rules apply; set by `Guard.claude_agent_sdk`.
        options: options of the agent.
        settings: further arguments of `ClaudeAgentHooks`.
    """
    return add_hooks(options, ClaudeAgentHooks(guard, **settings))


def add_hooks(options: ClaudeAgentOptions | None, hooks: ClaudeAgentHooks) -> ClaudeAgentOptions:
    """Return a copy of the options with the guard's hooks before those of the agent."""
    options, matchers = options or ClaudeAgentOptions(), hooks.build_matchers()
    for event, agent_matchers in (options.hooks or {}).items():
        matchers[event] = [*matchers.get(event, []), *agent_matchers]
    return replace(options, hooks=matchers)


@dataclass(kw_only=True)
class _HookedRun:
    """Run of an agent or a sub-agent.

    Attributes:
        session: session of the run.
        claims: claims of the calls that are running, by their IDs.
        errors: IDs of the calls of the current turn that failed.
        denied: IDs of the calls of the current turn that the guard has denied.
        calls: calls of the current turn, without equal ones.
        denials: reasons for the denial of calls of the current turn, by the ID of the call; an equal call
            gets the same reason.
    """

    session: Session
    claims: dict[str, EffectClaim] = field(default_factory=dict)
    errors: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    calls: list[ToolCall] = field(default_factory=list)
    denials: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRollback:
    """Rollback that the caller of the SDK executes after the agent's process has ended.

    Attributes:
        session: session of the run.
        to_step: number of steps to keep; None for a restart.
        text: messages for the model.
    """

    session: Session
    to_step: int | None
    text: str


class ClaudeAgentHooks:
    """Hooks of all runs of one agent.

    Args:
        guard: the guard whose rules apply.
        name: name of the agent in the trajectory.
        on_run: called with the session of each run when the run begins.
        ask: called with a question when a person must decide; may be a coroutine function.
        tools: tools of in-process MCP servers, by the name of the server. The guard then uses their schemas
            and annotations; the policy's declarations take precedence.
        can_roll_back: whether the caller executes `pending_rollback`.

    Attributes:
        pending_rollback: rollback of the main agent's run that the caller must execute; see `take_rollback`.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        name: str = "claude",
        on_run: Callable[[Session], None] | None = None,
        ask: AskCallback | None = None,
        tools: Mapping[str, Sequence[Any]] | None = None,
        can_roll_back: bool = False,
    ) -> None:
        self.pending_rollback: PendingRollback | None = None
        self._can_roll_back = can_roll_back
        self._resumed_run: _HookedRun | None = None
        self._guard, self._name, self._on_run, self._ask = guard, name, on_run, ask
        self._specs = build_tool_specs(tools or {})
        self._effects: dict[str, ToolEffect] = {
            tool: effect for tool, effect in read_effects(tools or {}).items() if tool not in guard.tools
        }
        self._runs: dict[tuple[str, str], _HookedRun] = {}

    def take_rollback(self) -> PendingRollback | None:
        """Remove and return the pending rollback, if any; the next prompt continues its run."""
        rollback, self.pending_rollback = self.pending_rollback, None
        if rollback is not None:
            self._resumed_run = next(run for run in self._runs.values() if run.session is rollback.session)
        return rollback

    def build_matchers(self) -> dict[Any, list[HookMatcher]]:
        """Return the hooks as the option ``hooks`` of the SDK."""
        handlers = {
            "UserPromptSubmit": self._begin_run,
            "PreToolUse": self._judge_call,
            "PostToolUse": self._record_result,
            "PostToolUseFailure": self._record_error,
            "PostToolBatch": self._commit_turn,
            "Stop": self._judge_end,
            "SubagentStop": self._judge_end,
        }
        timeout = None if self._ask is None else _ASK_TIMEOUT_S
        return {
            event: [HookMatcher(hooks=[self._wrap(event, handler)], timeout=timeout)]
            for event, handler in handlers.items()
        }

    def _wrap(self, event: str, handler: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]) -> Any:
        async def call_hook(
            hook_input: Mapping[str, Any], tool_use_id: str | None, context: Any
        ) -> dict[str, Any]:
            del tool_use_id, context
            try:
                return await handler(hook_input)
            except Exception as error:  # a failure of the guard must not fail the agent
                _LOGGER.warning("the guard failed in the hook %s: %s", event, type(error).__name__)
                if self._guard.components.recover.on_guard_error != "fail_closed" or event != "PreToolUse":
                    return {}
                return _deny("[guard] The call was refused: the guard failed.")

        return call_hook

    async def _begin_run(self, hook_input: Mapping[str, Any]) -> dict[str, Any]:
        key = (str(hook_input.get("session_id")), "")
        if self._resumed_run is not None:
            self._runs[key], self._resumed_run = self._resumed_run, None
            return {}
        earlier = self._runs.get(key)
        if earlier is not None:
            earlier.session.end(is_refusable=False)
        run = self._start_run(key, str(hook_input.get("prompt", "")))
        run.session.has_earlier_turns = earlier is not None
        return {}

    async def _judge_call(self, hook_input: Mapping[str, Any]) -> dict[str, Any]:
        run, call = self._get_run(hook_input), _build_call(hook_input)
        session = run.session
        session.add_tools([ToolSpec(name=call.name)])
        if (stop := _build_stop(session)) is not None:
            return stop
        equal = find_equal_call(call, run.calls, session.ledger)
        if equal is not None and equal.id in run.denials:
            run.denied.add(call.id)
            return _deny(run.denials[equal.id])
        turn = self._build_turn(call) if equal is None else self._build_turn(equal, call)
        choice = await _sync_async.run_async(
            resolve_turn(session, turn, lambda turn: turn, _reject_sample), _reject_sample
        )
        if choice.plan is not None:
            run.denied.add(call.id)
            texts = await acollect_messages(session, choice.plan, ask_person=self._ask)
            reason = format_call_refusal(" ".join(texts))
            run.calls.append(call)
            run.denials[call.id] = reason
            if equal is not None:
                run.denials[equal.id] = reason
            return _build_stop(session) or _deny(reason)
        claim = session.begin_tool(call.name, call.arguments or {})
        if claim.decision is ExecutionDecision.RUN:
            run.claims[call.id] = claim
            run.calls.append(call)
            return {}
        if claim.decision is ExecutionDecision.REUSE:
            result = claim.effect.result
            return _deny(f"[guard] This call has run before and was not repeated. It returned: {result}")
        return _deny(UNKNOWN_OUTCOME_MESSAGE)

    async def _record_result(self, hook_input: Mapping[str, Any]) -> dict[str, Any]:
        run = self._get_run(hook_input)
        claim = run.claims.pop(str(hook_input.get("tool_use_id")), None)
        if claim is not None:
            run.session.end_tool(claim, _read_text(hook_input.get("tool_response")))
        return {}

    async def _record_error(self, hook_input: Mapping[str, Any]) -> dict[str, Any]:
        run, id, error = (
            self._get_run(hook_input),
            str(hook_input.get("tool_use_id")),
            str(hook_input.get("error", "")),
        )
        run.errors.add(id)
        claim = run.claims.pop(id, None)
        if claim is not None:
            is_refused = error.startswith(_REFUSED_ERRORS)
            run.session.end_tool(claim, error, is_refused=is_refused, has_failed=True)
        return {}

    async def _commit_turn(self, hook_input: Mapping[str, Any]) -> dict[str, Any]:
        run = self._get_run(hook_input)
        entries = [
            one for one in hook_input.get("tool_calls", ()) if one.get("tool_use_id") not in run.denied
        ]
        for id in [str(one.get("tool_use_id")) for one in entries]:
            if (claim := run.claims.pop(id, None)) is not None:  # the user or another hook denied the call
                run.session.end_tool(claim, "", is_refused=True)
                run.errors.add(id)
        calls = tuple(map(_build_call, entries))
        observations = tuple(
            Observation(
                content=_read_text(entry.get("tool_response")),
                call_id=call.id,
                tool=call.name,
                is_error=True if call.id in run.errors else None,
            )
            for entry, call in zip(entries, calls, strict=True)
        )
        for turn_data in (run.errors, run.denied, run.calls, run.denials):
            turn_data.clear()
        if calls:
            run.session.commit(replace(self._build_turn(*calls), observations=observations))
        plan = run.session.check_boundary()
        texts = await acollect_messages(run.session, plan, ask_person=self._ask) if plan is not None else []
        if (stop := _build_stop(run.session) or self._plan_rollback(run.session, plan, texts)) is not None:
            return stop
        output = {"hookEventName": "PostToolBatch", "additionalContext": "\n".join(texts)}
        return {"hookSpecificOutput": output} if texts else {}

    async def _judge_end(self, hook_input: Mapping[str, Any]) -> dict[str, Any]:
        run = self._get_run(hook_input)
        session = run.session
        if session.has_ended or session.stop_reason is not None:
            return {}
        content = str(hook_input.get("last_assistant_message") or "")
        session.commit(Step(index=0, source=Source.AGENT, agent=self._name, content=content))
        plan = await aend_session(session)
        if plan is None or session.stop_reason is not None:
            return {}
        texts = await acollect_messages(session, plan, ask_person=self._ask)
        rollback = self._plan_rollback(session, plan, texts)
        return rollback or {"decision": "block", "reason": "\n".join(texts)}

    def _plan_rollback(
        self, session: Session, plan: RecoveryPlan | None, texts: Sequence[str]
    ) -> dict[str, Any] | None:
        """Return the output that ends the process for a rollback; None if the plan removes no turn."""
        for action in plan.actions if plan is not None else ():
            if isinstance(action, Rewind | Restart):
                to_step = action.to_step if isinstance(action, Rewind) else None
                self.pending_rollback = PendingRollback(
                    session=session, to_step=to_step, text="\n".join(texts)
                )
                return {"continue_": False, "stopReason": "[guard] The run is rolled back."}
        return None

    def _build_turn(self, *calls: ToolCall) -> Step:
        return Step(index=0, source=Source.AGENT, agent=self._name, content="", tool_calls=calls)

    def _get_run(self, hook_input: Mapping[str, Any]) -> _HookedRun:
        """Return the run of a hook; start it if it has none, for example the run of a sub-agent."""
        key = (str(hook_input.get("session_id")), str(hook_input.get("agent_id") or ""))
        return self._runs.get(key) or self._start_run(key, "")

    def _start_run(self, key: tuple[str, str], task: str) -> _HookedRun:
        meta = Trajectory(
            id=f"claude-{uuid.uuid4().hex[:16]}",
            format="event_log",
            task=task,
            steps=(),
            tools=self._specs,
            extra={"claude_agent_sdk": {"session_id": key[0], **({"agent_id": key[1]} if key[1] else {})}},
        )
        can_truncate = self._can_roll_back and not key[1]  # the SDK forks sessions, not sub-agents
        capabilities = Capabilities(
            reject=True, truncate=can_truncate, restart=can_truncate, escalate=self._ask is not None
        )
        session = self._guard.session(meta, capabilities)
        for tool, effect in self._effects.items():
            session.ledger.declare_tool(tool, effect)
        if task:
            session.commit(Step(index=0, source=Source.USER, agent="user", content=task))
        session.check_boundary()
        run = self._runs[key] = _HookedRun(session=session)
        if self._on_run is not None:
            self._on_run(session)
        return run


def _build_call(hook_input: Mapping[str, Any]) -> ToolCall:
    arguments = hook_input.get("tool_input")
    return ToolCall(
        id=str(hook_input.get("tool_use_id")),
        name=str(hook_input.get("tool_name")),
        arguments=dict(arguments) if isinstance(arguments, Mapping) else {},
    )


def _read_text(response: Any) -> str:
    """Return the text of a tool's response: the texts of its content blocks, or its JSON."""
    if isinstance(response, str):
        return response
    if isinstance(response, list) and all(isinstance(one, Mapping) and "type" in one for one in response):
        return "\n".join(str(one.get("text", f"[{one['type']}]")) for one in response)
    return "" if response is None else orjson.dumps(response, default=str).decode()


def _deny(reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }


def _build_stop(session: Session) -> dict[str, Any] | None:
    """Return the output that ends the agent's run; None unless the guard has stopped it."""
    reason = session.stop_reason
    text = f"[guard] The run was stopped: {reason}"
    return None if reason is None else {"continue_": False, "stopReason": text}


def _reject_sample(_: Any) -> Any:
    raise RecoveryError("hooks cannot request another response")
