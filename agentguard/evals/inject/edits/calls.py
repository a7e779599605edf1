"""Edits of tool calls and of the agent's reaction to a tool error."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson

from agentguard.detect.tool_names import is_write_tool
from agentguard.evals.inject.edits.base import BaseEdit, RewrittenRun, TailHandling
from agentguard.evals.inject.edits.failure_messages import RefusalReason, format_refusal
from agentguard.evals.inject.edits.propagation import refuse_call, replace_answer, replace_call
from agentguard.evals.inject.edits.run_editor import RunEditor
from agentguard.evals.inject.edits.run_index import RunIndex
from agentguard.trajectory.formats.sdk import parse_arguments
from agentguard.trajectory.model import ToolCall

_SYNONYMS = {
    "get": ("fetch", "retrieve", "load"),
    "search": ("find", "query", "look_up"),
    "find": ("search", "locate"),
    "list": ("get", "show"),
    "update": ("modify", "change", "edit"),
    "modify": ("update", "change"),
    "cancel": ("delete", "remove", "void"),
    "delete": ("remove", "erase"),
    "book": ("create", "make", "place"),
    "create": ("make", "add", "new"),
    "send": ("issue", "mail", "submit"),
    "calculate": ("compute", "evaluate"),
    "open": ("unseal", "pull"),
    "take": ("grab", "pick_up", "get"),
    "put": ("place", "lay"),
    "look": ("observe", "view"),
    "go": ("walk", "move_to"),
    "examine": ("inspect", "check"),
    "return": ("refund", "send_back"),
    "exchange": ("swap", "replace"),
}
_OTHERS = ("run_{0}", "do_{0}", "{0}_all", "{0}_v2", "{0}_now", "auto_{0}")


class RefusedCallEdit(BaseEdit):
    """Edit that inserts a call which the environment refuses."""

    refusal_reason: RefusalReason

    def inject_refusal(
        self, run_index: RunIndex, step: int, wrong: ToolCall, rng: random.Random, *, reason: str
    ) -> RewrittenRun:
        """Return the run with the wrong call and its refusal, after which the agent gives up."""
        draft = RunEditor(run_index, rng)
        turn = run_index.steps[step]
        index = next(i for i, call in enumerate(turn.tool_calls) if call.id == wrong.id)
        draft.set(step, replace_call(turn, index, wrong))
        refuse_call(draft, step, format_refusal(self.refusal_reason, run_index, wrong, rng), rng)
        return draft.finish(
            step=step, cause=self.build_cause(turn.agent, step, reason), tail=TailHandling.TRUNCATED
        )


class InvalidActionEdit(RefusedCallEdit):
    """Edit that calls a tool that is not offered; the environment refuses it, and the agent gives up."""

    name = "invalid_action"
    summary = "a tool is called by a name that does not exist"
    codes = ("agent_error:action.invalid_action", "agentrx:invalid_invocation")
    module = "action"
    refusal_reason = RefusalReason.UNKNOWN_TOOL

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Rename one call."""
        candidates = [
            (index, name)
            for index, call in enumerate(_find_valid_calls(run_index, step))
            for name in _find_unoffered_names(run_index, call.name)
        ]
        if not candidates:
            return None
        index, name = rng.choice(candidates)
        call = run_index.steps[step].tool_calls[index]
        reason = f"{name} is called, which is not offered; {call.name} is."
        return self.inject_refusal(run_index, step, replace(call, name=name), rng, reason=reason)


class FormatErrorEdit(RefusedCallEdit):
    """Edit that makes arguments invalid JSON; the environment cannot parse them, and the agent gives up."""

    name = "format_error"
    summary = "a call's arguments are no longer a JSON object"
    codes = ("agent_error:action.format_error", "agentrx:invalid_invocation")
    module = "action"
    refusal_reason = RefusalReason.BAD_FORMAT

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Break the text of the arguments of one call."""
        candidates = [
            (call, text)
            for call in _find_valid_calls(run_index, step)
            for text in _break_json(call)
            if parse_arguments(text, "arguments")[0] is None
        ]
        if not candidates:
            return None
        call, text = rng.choice(candidates)
        broken_call = replace(call, arguments=None, raw_arguments=text)
        reason = f"The arguments of {call.name} are not a JSON object."
        return self.inject_refusal(run_index, step, broken_call, rng, reason=reason)


class ToolErrorIgnoredEdit(BaseEdit):
    """Edit that lets a correct call fail although the agent reports success."""

    name = "tool_error_ignored"
    summary = "the last change fails, and the agent goes on as if it had worked"
    codes = (
        "agent_error:reflection.outcome_misinterpretation",
        "agentrx:misinterpretation_of_tool_output",
    )
    module = "reflection"

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Make a changing call fail after which the agent makes no call; keep the later text."""
        if not (
            run_index.has_answered_calls(step) and run_index.has_no_error(step)
        ) or run_index.has_answers_after(step):
            return None
        claim = next((i for i in range(step + 1, len(run_index.steps)) if run_index.is_agent(i)), None)
        calls = [call for call in run_index.steps[step].tool_calls if is_write_tool(call.name)]
        if not calls or claim is None or not run_index.steps[claim].content:
            return None
        if run_index.is_needed_later(step, step + 1):
            return None
        call = rng.choice(calls)
        draft = RunEditor(run_index, rng)
        answer = format_refusal(RefusalReason.BROKEN_DOWN, run_index, call, rng)
        draft.set(step, replace_answer(draft[step], answer, run_index))
        reason = f"{call.name} failed, and the agent goes on as if it had worked."
        cause = self.build_cause(run_index.steps[claim].agent, claim, reason)
        return draft.finish(step=step, cause=cause, tail=TailHandling.KEPT)


INVALID_ACTION = InvalidActionEdit()
FORMAT_ERROR = FormatErrorEdit()
TOOL_ERROR_IGNORED = ToolErrorIgnoredEdit()


def _find_valid_calls(run_index: RunIndex, step: int) -> tuple[ToolCall, ...]:
    if not run_index.has_answered_calls(step) or not run_index.has_no_error(step):
        return ()
    return run_index.steps[step].tool_calls


def _find_unoffered_names(run_index: RunIndex, name: str) -> list[str]:
    existing_names = {tool.name for tool in run_index.run.tools}
    existing_names |= {call.name for step in run_index.steps for call in step.tool_calls}
    verb, mark, rest = name.partition("_")
    variants = [f"{other}{mark}{rest}" for other in _SYNONYMS.get(verb.lower(), ())]
    synonyms = [variant for variant in variants if variant not in existing_names]
    return synonyms or [
        variant for form in _OTHERS if (variant := form.format(name)) not in existing_names and name
    ]


def _break_json(call: ToolCall) -> list[str]:
    """Return typical syntax errors of the JSON arguments."""
    if not call.arguments:
        return []
    text = call.raw_arguments or orjson.dumps(call.arguments, default=str).decode()
    unquoted = text.replace('"', "", 2)
    return [text.rstrip()[:-1], text.replace('"', "'"), unquoted, f"{text}}}", text.replace(":", "=", 1)]
