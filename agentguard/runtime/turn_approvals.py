"""Decisions of a person on turns whose calls the guard refused."""

from __future__ import annotations

import re

from agentguard.detect.step_facts import canonicalize_json
from agentguard.trajectory.model import Step

_APPROVAL_PATTERN = re.compile(
    r"\W*(?:(?:y|yes|yep|ok|okay|sure|approved?|allow(?:ed)?|confirm(?:ed)?|go ahead|proceed|do it|please)\b"
    r"\W*)+",
    re.IGNORECASE,
)
"""The whole answer must match: "Yes, but only 10." is a new instruction."""

TurnSignature = tuple[tuple[str, str], ...]
"""Names and canonical arguments of the calls of a turn."""


def compute_turn_signature(turn: Step) -> TurnSignature:
    """Return the signature by which turns with equal calls are recognised."""
    return tuple((call.name, canonicalize_json(call.arguments)) for call in turn.tool_calls)


class TurnApprovals:
    """Turns of one run that a person has approved or denied.

    An approval is valid until its turn is committed, so a later equal turn needs another one. A denial is
    valid until the end of the run.
    """

    def __init__(self) -> None:
        self._question: TurnSignature | None = None
        self._approved: set[TurnSignature] = set()
        self._denied: set[TurnSignature] = set()

    def record_question(self, turn: Step) -> None:
        """Record that a person is asked about the calls of a turn."""
        self._question = compute_turn_signature(turn) if turn.tool_calls else None

    def record_answer(self, answer: str) -> bool | None:
        """Return whether a person's answer approves the calls; None if no calls wait for an answer."""
        signature, self._question = self._question, None
        if signature is None:
            return None
        is_approved = _APPROVAL_PATTERN.fullmatch(answer) is not None
        (self._approved if is_approved else self._denied).add(signature)
        return is_approved

    def is_approved(self, turn: Step) -> bool:
        """Return whether the calls of a turn may run whatever the guard finds."""
        return bool(self._approved) and compute_turn_signature(turn) in self._approved

    def is_denied(self, turn: Step) -> bool:
        """Return whether a person has decided that the calls of a turn must not run."""
        return bool(self._denied) and compute_turn_signature(turn) in self._denied

    def record_commit(self, turn: Step) -> None:
        """Record that the calls of a turn have run."""
        if self._approved:
            self._approved.discard(compute_turn_signature(turn))
