"""What an agent is told when its run is taken back: in one place, so that every strategy says it alike."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from agentguard.localize.base import Hypothesis
from agentguard.recover.effect_ledger import Effect, EffectState

_MAX_EFFECTS = 20
_MAX_CHARS = 300

_DEFAULT_ADVICE = "Look again at what was asked and at what has been observed, and choose another way."


def format_advice(hypothesis: Hypothesis) -> str:
    """The correction of a hypothesis, or a general one where it has none."""
    return hypothesis.correction.strip() or _DEFAULT_ADVICE


def to_sentence(clause: str) -> str:
    """A reason, which may be a clause or several sentences, as text of its own; empty for none."""
    text = clause.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def format_hint(hypothesis: Hypothesis) -> str:
    """A hint for an agent that goes on from where it is."""
    reason = to_sentence(hypothesis.reason)
    return (
        f"[guard] A check of your last steps found a problem. {reason} {format_advice(hypothesis)}".replace(
            "  ", " "
        )
    )


def format_correction(
    hypothesis: Hypothesis, effects: Sequence[Effect], *, undone: Sequence[Effect] = (), extra_steps: int = 0
) -> str:
    """What an agent is told that has been taken back to before the step of ``hypothesis``.

    Args:
        hypothesis: what went wrong.
        effects: calls that took effect and stay, though the agent no longer sees them.
        undone: calls that took effect and were undone.
        further: steps that it was taken back beyond that step, to where its state had been saved.
    """
    which = (
        "the step you took here" if not extra_steps else f"step {extra_steps + 1} of those you took from here"
    )
    parts = [
        f"[guard] Your run was taken back to this point, because {which} led to a failure.",
        to_sentence(hypothesis.reason),
        format_advice(hypothesis),
    ]
    if effects:
        parts.append(
            "These calls have already taken effect; do not repeat them: " + format_effects(effects) + "."
        )
    if undone:
        parts.append("These calls were undone: " + format_effects(undone) + ".")
    return " ".join(part for part in parts if part)


def format_interruption(steps: int, effects: Sequence[Effect]) -> str:
    """What an agent is told whose run died and goes on from the last state that was saved.

    Args:
        steps: that were lost with it.
        effects: calls of those steps that took effect and stay.
    """
    text = f"[guard] The run was interrupted and goes on from this point; {steps} later steps are lost."
    if effects:
        text += " These calls have already taken effect; do not repeat them: " + format_effects(effects) + "."
    return text


def format_repaired_call(changes: str) -> str:
    """What an agent is told whose calls were repaired."""
    return (
        f"[guard] Your last call did not fit its tool and was repaired before it ran. {changes}. Write it so."
    )


def format_repeated_read(tool: str) -> str:
    """What an agent is told where a read was made once more."""
    return f"[guard] {tool} failed at first and was called once more; what you see is what it returned then."


def format_effects(effects: Sequence[Effect]) -> str:
    """Calls as text, with what they returned; those in doubt are named as such."""
    lines = [_format_effect(effect) for effect in effects[:_MAX_EFFECTS]]
    more = len(effects) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


def _format_effect(effect: Effect) -> str:
    arguments = orjson.dumps(dict(effect.arguments), default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    text = f"{effect.tool}({_truncate(arguments)})"
    if effect.state is EffectState.ATTEMPTED:
        return f"{text}, which may or may not have happened: check before you go on"
    return f"{text} returned {_truncate(effect.result)}" if effect.result else text


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…"
