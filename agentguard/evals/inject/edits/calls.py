"""Errors in how a tool is called, and in how its error is taken."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson

from agentguard.evals.inject.edits.base import Rewritten, Tail
from agentguard.evals.inject.edits.carry import answered, calling, refuse
from agentguard.evals.inject.edits.draft import Draft
from agentguard.evals.inject.edits.maker import Maker
from agentguard.evals.inject.edits.reading import Reading
from agentguard.evals.inject.edits.wording import Refusal, refusal
from agentguard.judge.features.tools import changes
from agentguard.trajectory.formats._chat import parse_arguments
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


class RefusedCall(Maker):
    """An error in a call for which the environment refuses it."""

    why: Refusal

    def refused(
        self, read: Reading, step: int, wrong: ToolCall, rng: random.Random, *, reason: str
    ) -> Rewritten:
        """The run with the wrong call, its refusal, and the agent giving up."""
        draft = Draft(read, rng)
        turn = read.steps[step]
        place = next(i for i, call in enumerate(turn.tool_calls) if call.id == wrong.id)
        draft.set(step, calling(turn, place, wrong))
        refuse(draft, step, refusal(self.why, read, wrong, rng), rng)
        return draft.finish(step=step, cause=self.cause(turn.agent, step, reason), tail=Tail.TRUNCATED)


class InvalidAction(RefusedCall):
    """A tool is called that is not offered; the environment refuses it, and the agent gives up."""

    name = "invalid_action"
    summary = "a tool is called by a name that nobody offers"
    codes = ("agent_error:action.invalid_action", "agentrx:invalid_invocation")
    module = "action"
    why = Refusal.UNKNOWN_TOOL

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Rename one call."""
        found = [
            (place, name)
            for place, call in enumerate(_sound_calls(read, step))
            for name in _names_nobody_offers(read, call.name)
        ]
        if not found:
            return None
        place, name = rng.choice(found)
        call = read.steps[step].tool_calls[place]
        reason = f"{name} is called, which is not offered; {call.name} is."
        return self.refused(read, step, replace(call, name=name), rng, reason=reason)


class FormatError(RefusedCall):
    """A call's arguments are not JSON; the environment cannot read them, and the agent gives up."""

    name = "format_error"
    summary = "a call's arguments are no JSON object any more"
    codes = ("agent_error:action.format_error", "agentrx:invalid_invocation")
    module = "action"
    why = Refusal.BAD_FORMAT

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Break the text of one call's arguments."""
        found = [
            (call, text)
            for call in _sound_calls(read, step)
            for text in _broken(call)
            if parse_arguments(text, "arguments")[0] is None
        ]
        if not found:
            return None
        call, text = rng.choice(found)
        wrong = replace(call, arguments=None, raw_arguments=text)
        reason = f"The arguments of {call.name} are not a JSON object."
        return self.refused(read, step, wrong, rng, reason=reason)


class ToolErrorIgnored(Maker):
    """A call fails through no fault of its own, and the agent reports that it worked."""

    name = "tool_error_ignored"
    summary = "the last change fails, and the agent goes on as if it had worked"
    codes = (
        "agent_error:reflection.outcome_misinterpretation",
        "agentrx:misinterpretation_of_tool_output",
    )
    module = "reflection"

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Let a change fail after which the agent only talks; what it says stays."""
        if not (read.acts(step) and read.went_well(step)) or read.answers_after(step):
            return None
        claim = next((i for i in range(step + 1, len(read.steps)) if read.is_agent(i)), None)
        calls = [call for call in read.steps[step].tool_calls if changes(call.name)]
        if not calls or claim is None or not read.steps[claim].content:
            return None
        if read.needed_later(step, step + 1):
            return None
        call = rng.choice(calls)
        draft = Draft(read, rng)
        draft.set(step, answered(draft[step], refusal(Refusal.BROKEN_DOWN, read, call, rng), read))
        reason = f"{call.name} failed, and the agent goes on as if it had worked."
        cause = self.cause(read.steps[claim].agent, claim, reason)
        return draft.finish(step=step, cause=cause, tail=Tail.KEPT)


INVALID_ACTION = InvalidAction()
FORMAT_ERROR = FormatError()
TOOL_ERROR_IGNORED = ToolErrorIgnored()


def _sound_calls(read: Reading, step: int) -> tuple[ToolCall, ...]:
    if not read.acts(step) or not read.went_well(step):
        return ()
    return read.steps[step].tool_calls


def _names_nobody_offers(read: Reading, name: str) -> list[str]:
    taken = {tool.name for tool in read.run.tools}
    taken |= {call.name for step in read.steps for call in step.tool_calls}
    verb, mark, rest = name.partition("_")
    near = [f"{other}{mark}{rest}" for other in _SYNONYMS.get(verb.lower(), ())]
    found = [one for one in near if one not in taken]
    return found or [one for form in _OTHERS if (one := form.format(name)) not in taken and name]


def _broken(call: ToolCall) -> list[str]:
    """Slips that writers of JSON make."""
    if not call.arguments:
        return []
    text = call.raw_arguments or orjson.dumps(call.arguments, default=str).decode()
    unquoted = text.replace('"', "", 2)
    return [text.rstrip()[:-1], text.replace('"', "'"), unquoted, f"{text}}}", text.replace(":", "=", 1)]
