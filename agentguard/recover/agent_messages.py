"""Messages to the agent during a recovery, shared by all strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentguard.localize.base import Hypothesis
from agentguard.recover.effect_store import Effect
from agentguard.trajectory.model import Step, ToolCall

_MAX_EFFECTS = 20
_MAX_CHARS = 300

_REJECTED_ANSWER = "Your last answer was rejected. None of its tool calls ran."
_REFUSED_CALL = "This call was not run."

_DEFAULT_ADVICE = "Check the task and the results so far, then try a different approach."


def format_advice(hypothesis: Hypothesis) -> str:
    """Return the correction of a hypothesis; general advice if it has none."""
    return hypothesis.correction.strip() or _DEFAULT_ADVICE


def to_sentence(clause: str) -> str:
    """Convert a clause to a sentence: capitalise it and add a full stop; an empty clause stays empty."""
    text = clause.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def format_hint(hypothesis: Hypothesis) -> str:
    """Format a hint for an agent that continues from its last step."""
    reason = to_sentence(hypothesis.reason)
    parts = ["[guard] A check of your last steps found a problem.", reason, format_advice(hypothesis)]
    return " ".join(part for part in parts if part)


def format_correction(
    hypothesis: Hypothesis,
    effects: Sequence[Effect],
    *,
    undone: Sequence[Effect] = (),
    extra_steps: int = 0,
    attempt: Step | None = None,
) -> str:
    """Format the message to an agent after a rollback to the step of ``hypothesis`` or an earlier one.

    Args:
        hypothesis: the presumed root cause.
        effects: effects that remain although the agent no longer sees their calls.
        undone: effects that were undone.
        extra_steps: number of steps between the step to which the run was rolled back and that of
            ``hypothesis``.
        attempt: discarded step of ``hypothesis``; the message quotes its first call and the result.
    """
    culprit = f"step {extra_steps + 1} after this point" if extra_steps else "the step after this point"
    parts = [
        f"[guard] Your run was rolled back to this point, because {culprit} led to a failure.",
        to_sentence(hypothesis.reason),
        format_advice(hypothesis),
    ]
    if attempt is not None and attempt.tool_calls:
        parts.append(_format_attempt(attempt))
    parts += format_effect_notes(effects)
    if undone:
        parts.append("These calls were undone: " + format_effects(undone) + ".")
    return " ".join(part for part in parts if part)


def format_rejection(hypothesis: Hypothesis, effects: Sequence[Effect]) -> str:
    """Format the message to an agent whose last answer was rejected before its calls ran.

    Args:
        hypothesis: the reason of the rejection.
        effects: effects that remain although the agent no longer sees their calls.
    """
    parts = [
        f"[guard] {_REJECTED_ANSWER}",
        to_sentence(hypothesis.reason),
        format_advice(hypothesis),
        *format_effect_notes(effects),
    ]
    return " ".join(part for part in parts if part)


def format_call_refusal(rejection: str) -> str:
    """Return the text of `format_rejection` for an integration that rejects one call of an answer."""
    return rejection.replace(_REJECTED_ANSWER, _REFUSED_CALL)


def format_effect_notes(effects: Sequence[Effect]) -> list[str]:
    """Return one sentence on the calls that took effect, and one on those with unknown outcome."""
    done = [effect for effect in effects if not effect.is_unsettled]
    unknown = [effect for effect in effects if effect.is_unsettled]
    notes = []
    if done:
        notes.append(f"These calls have already taken effect; do not repeat them: {format_effects(done)}.")
    if unknown:
        notes.append(f"It is not known whether these calls took effect: {format_effects(unknown)}.")
    return notes


def _format_attempt(step: Step) -> str:
    """Format the first call of a discarded step and its result, so that the agent still knows the attempt."""
    call = step.tool_calls[0]
    result = next((one.content for one in step.observations if one.call_id in (call.id, None)), "")
    text = f"The discarded call was {_format_call(call.name, call.arguments or {})}"
    return f'{text}, which returned "{_truncate(result.strip())}".' if result.strip() else f"{text}."


def format_interruption(steps: int, effects: Sequence[Effect]) -> str:
    """Format the message to an agent whose interrupted run continues from the last saved state.

    Args:
        steps: number of lost steps.
        effects: effects of those steps, which remain.
    """
    text = f"[guard] The run was interrupted and continues from this point. Lost steps: {steps}."
    return " ".join([text, *format_effect_notes(effects)])


def format_person_answer(answer: str, *, is_approved: bool) -> str:
    """Format the message to an agent after a person's decision on its refused calls."""
    if is_approved:
        return "[guard] A person approved the calls of your last answer. Make them again: they will run."
    return f'[guard] A person did not approve the calls of your last answer. The reply: "{answer.strip()}".'


def format_repaired_call(changes: str) -> str:
    """Format the message to an agent after a repair of its calls."""
    return (
        "[guard] Your last call did not match the schema of its tool and was repaired before it ran. "
        f"{changes}. Use this form in later calls."
    )


def format_failed_undo(effects: Sequence[Effect]) -> str:
    """Format the message to an agent after undo functions failed."""
    names = ", ".join(effect.tool for effect in effects)
    return f"[guard] The undo of these calls failed, so their effects remain: {names}."


def format_repeated_read(tool: str) -> str:
    """Format the message to an agent after the retry of a call of a read-only tool."""
    return f"[guard] The first call of {tool} failed. It was repeated; the result is that of the second call."


def format_calls(calls: Sequence[ToolCall]) -> str:
    """Format at most 20 calls with their arguments."""
    return "; ".join(_format_call(call.name, call.arguments or {}) for call in calls[:_MAX_EFFECTS])


def format_effects(effects: Sequence[Effect]) -> str:
    """Format at most 20 calls with their results, and the number of the others; mark unknown outcomes."""
    lines = [_format_effect(effect) for effect in effects[:_MAX_EFFECTS]]
    more = len(effects) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


def _format_effect(effect: Effect) -> str:
    text = _format_call(effect.tool, effect.arguments)
    if effect.is_unsettled:
        return f"{text}, whose outcome is unknown: check it before you continue"
    return f"{text} returned {_truncate(effect.result)}" if effect.result else text


def _format_call(tool: str, arguments: Mapping[str, Any]) -> str:
    text = orjson.dumps(dict(arguments), default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    return f"{tool}({_truncate(text)})"


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…"
