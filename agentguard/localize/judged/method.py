"""What all localizers that ask a judge share: whether the run failed, the ranking, and what it cost.

A method says which steps are likely; everything else is the same for all of them, so that they can be
compared on one judge. What the rules found stands beside the judge's answer and is never overturned by it: a
judge that sees no failure where a rule is sure of one makes the diagnosis abstain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.judge.base import RUN_FAILED, Judge
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.localize.judged.asking import Asking
from agentguard.localize.judged.named import judge_of
from agentguard.localize.ranking import MOST, reject
from agentguard.trajectory.model import Trajectory

SURE: Final = 0.9
"""Probability from which a rule's finding keeps a judge from saying that nothing failed."""

DOUBT: Final = 0.1
"""How far from one half a judge must be to say whether a run failed."""

_LEAST: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """What a method came to.

    Attributes:
        steps: step index to its probability of being the root cause, given that the run failed.
        told: step index to what else is known of it, as fields of a `Hypothesis`.
        notes: for the diagnosis.
    """

    steps: Mapping[int, float] = field(default_factory=dict)
    told: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Method = Callable[[Asking, Trajectory, Sequence[Finding]], Ranked]
"""Asks about a run that has at least one step; a question without an answer leaves the ranking empty."""


class Judged:
    """A localizer around a method.

    Args:
        name: name it is registered under.
        method: how it asks.
        judge: who is asked.
        given_failed: take it as known that every run failed, and do not ask.
    """

    def __init__(self, name: str, method: Method, judge: Judge, *, given_failed: bool = False) -> None:
        self.name, self.judge, self.given_failed = name, judge, given_failed
        self._method = method

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run; where the judge cannot be asked it abstains, with the fault among its failures."""
        asking = Asking(self.judge)
        if not trajectory.steps:
            return self._told(trajectory, asking, None, Ranked(notes=("the run has no step",)), ())
        failed = 1.0 if self.given_failed else asking.yes(trajectory, RUN_FAILED)
        ranked = Ranked() if failed is None else self._method(asking, trajectory, findings)
        return self._told(trajectory, asking, failed, ranked, findings)

    def _told(
        self,
        run: Trajectory,
        asking: Asking,
        failed: float | None,
        ranked: Ranked,
        findings: Sequence[Finding],
    ) -> Diagnosis:
        verdict, note = verdict_of(failed, findings, ranked=bool(ranked.steps))
        return Diagnosis(
            trajectory_id=run.id,
            method=self.name,
            verdict=verdict,
            probability=0.5 if failed is None else failed,
            hypotheses=() if verdict is Verdict.NO_FAILURE else _hypotheses(run, ranked),
            failures=asking.failures,
            usage=asking.spent,
            notes=(*note, *ranked.notes),
        )


def judged(name: str, method: Method, options: dict[str, Any]) -> Judged:
    """Make a localizer from a policy's options: those of `judge_of`, and ``given_failed``.

    Raises:
        ConfigError: an option does not exist or is out of its range, or no judge is named.
    """
    given_failed = bool(options.pop("given_failed", False))
    judge = judge_of(name, options)
    reject(name, options)
    return Judged(name, method, judge, given_failed=given_failed)


def whole_number(name: str, options: dict[str, Any], key: str, default: int) -> int:
    """Take an option that is a whole number of at least 1. Raises ConfigError if it is none."""
    value = options.pop(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"localizer {name!r}: {key} is {value!r}, expected a whole number of at least 1")
    return value


def verdict_of(
    failed: float | None, findings: Sequence[Finding], *, ranked: bool = True
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict that follows from what a judge says, and a note where it needs one.

    Args:
        failed: the probability that the run failed; None if the judge could not answer.
        findings: what the rules found.
        ranked: whether there is a ranking of the steps.
    """
    if failed is None or (failed >= 0.5 - DOUBT and not ranked):
        return Verdict.ABSTAINED, ("the judge could not answer",)
    if abs(failed - 0.5) < DOUBT:
        return Verdict.ABSTAINED, ("the judge is not sure enough whether the run failed",)
    if failed > 0.5:
        return Verdict.FAILURE, ()
    sure = next((one for one in findings if one.probability >= SURE), None)
    if sure is not None:
        note = f"the judge sees no failure, but {sure.detector} is sure of one at step {sure.step}"
        return Verdict.ABSTAINED, (note,)
    return Verdict.NO_FAILURE, ()


def _hypotheses(run: Trajectory, ranked: Ranked) -> tuple[Hypothesis, ...]:
    order = sorted(ranked.steps, key=lambda step: (-ranked.steps[step], step))[:MOST]
    kept = [step for place, step in enumerate(order) if place < 3 or ranked.steps[step] >= _LEAST]
    return tuple(
        Hypothesis(
            step=step,
            agent=run.steps[step].agent,
            probability=min(1.0, max(0.0, ranked.steps[step])),
            **ranked.told.get(step, {}),
        )
        for step in kept
    )
