"""What an agent is told when its run is taken back: in one place, so that every strategy says it alike."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from agentguard.localize.base import Hypothesis
from agentguard.recover.ledger import Effect, EffectState

_MOST_EFFECTS = 20
_MOST_CHARACTERS = 300

_GENERAL = "Look again at what was asked and at what has been observed, and choose another way."


def advice(hypothesis: Hypothesis) -> str:
    """The correction of a hypothesis, or a general one where it has none."""
    return hypothesis.correction.strip() or _GENERAL


def sentence(clause: str) -> str:
    """A reason, which may be a clause or several sentences, as text of its own; empty for none."""
    text = clause.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def hint(hypothesis: Hypothesis) -> str:
    """A hint for an agent that goes on from where it is."""
    reason = sentence(hypothesis.reason)
    return f"[guard] A check of your last steps found a problem. {reason} {advice(hypothesis)}".replace(
        "  ", " "
    )


def correction(
    hypothesis: Hypothesis, effects: Sequence[Effect], *, undone: Sequence[Effect] = (), further: int = 0
) -> str:
    """What an agent is told that has been taken back to before the step of ``hypothesis``.

    Args:
        hypothesis: what went wrong.
        effects: calls that took effect and stay, though the agent no longer sees them.
        undone: calls that took effect and were undone.
        further: steps that it was taken back beyond that step, to where its state had been saved.
    """
    which = "the step you took here" if not further else f"step {further + 1} of those you took from here"
    parts = [
        f"[guard] Your run was taken back to this point, because {which} led to a failure.",
        sentence(hypothesis.reason),
        advice(hypothesis),
    ]
    if effects:
        parts.append("These calls have already taken effect; do not repeat them: " + listed(effects) + ".")
    if undone:
        parts.append("These calls were undone: " + listed(undone) + ".")
    return " ".join(part for part in parts if part)


def interrupted(steps: int, effects: Sequence[Effect]) -> str:
    """What an agent is told whose run died and goes on from the last state that was saved.

    Args:
        steps: that were lost with it.
        effects: calls of those steps that took effect and stay.
    """
    text = f"[guard] The run was interrupted and goes on from this point; {steps} later steps are lost."
    if effects:
        text += " These calls have already taken effect; do not repeat them: " + listed(effects) + "."
    return text


def repaired_call(said: str) -> str:
    """What an agent is told whose calls were repaired."""
    return f"[guard] Your last call did not fit its tool and was repaired before it ran. {said}. Write it so."


def repeated_read(tool: str) -> str:
    """What an agent is told where a read was made once more."""
    return f"[guard] {tool} failed at first and was called once more; what you see is what it returned then."


def listed(effects: Sequence[Effect]) -> str:
    """Calls as text, with what they returned; those in doubt are named as such."""
    lines = [_call(effect) for effect in effects[:_MOST_EFFECTS]]
    more = len(effects) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


def _call(effect: Effect) -> str:
    arguments = orjson.dumps(dict(effect.arguments), default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    text = f"{effect.tool}({_short(arguments)})"
    if effect.state is EffectState.ATTEMPTED:
        return f"{text}, which may or may not have happened: check before you go on"
    return f"{text} returned {_short(effect.result)}" if effect.result else text


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
