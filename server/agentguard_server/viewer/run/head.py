"""The head of the page: what went wrong, in one sentence, and what was done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.trajectory.model import Step
from agentguard_server.viewer.bundle import Bundle
from agentguard_server.viewer.recovery import Recovered
from agentguard_server.viewer.run.figures import percent, several
from agentguard_server.viewer.run.lines import LIVE, Line, Lines
from agentguard_server.viewer.run.marks import Quote, Quotes
from agentguard_server.viewer.run.names import Named, named
from agentguard_server.viewer.run.turns import seconds_of, turns_of_agents

State = Literal["failed", "recovered", "lost", "pending", "fine", "unsure", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A step held to be the root cause.

    Attributes:
        rank: among the hypotheses, from 1.
        line, step, agent, module: where it is.
        codes: what went wrong, the most specific first.
        probability: that this step is the root cause.
        reason, correction: why, and what to do instead.
        quotes: its evidence.
        there: the step is in the run.
    """

    rank: int
    line: str
    step: int
    agent: str
    module: str
    codes: tuple[Named, ...]
    probability: float
    reason: str
    correction: str
    quotes: tuple[Quote, ...]
    there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all lines of the run; None where no step says."""

    steps: int
    left: int
    turns: int
    tokens: int | None
    cost: float | None
    duration: float | None
    guard: float | None
    timing: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head.

    Attributes:
        state: of the run, as a whole.
        title: the state in a few words.
        says: what that means, in a sentence.
        probability: that the run as it ended failed; None without a diagnosis.
        cause: what went wrong first; None where nothing is held to be wrong.
        causes: the ranked hypotheses of the diagnosis, without those hardly likely.
        recovery: the recovery that the state is about.
        after: what the diagnosis says of the run as it ended, after recoveries.
    """

    state: State
    title: str
    says: str
    probability: float | None
    cause: Cause | None
    causes: tuple[Cause, ...]
    recovery: Recovered | None
    after: str
    totals: Totals


_SUSPECTS = 3
_LIKELY = 0.1
"""Beyond the first three, hypotheses that are less likely than this only draw the eye away."""

_FINAL = {
    Verdict.FAILURE: "failed",
    Verdict.NO_FAILURE: "shows no failure",
    Verdict.ABSTAINED: "cannot be judged with certainty",
}


def head_of(bundle: Bundle, lines: Lines, quotes: Quotes) -> Head:
    """Put the head together; quotes of the causes are numbered first."""
    diagnosis = bundle.diagnosis
    main = _main(bundle.recoveries)
    taken = _taken(main, lines, quotes) if main is not None else None
    causes = _causes(diagnosis, lines.live, quotes, chief=main is None) if diagnosis else ()
    state, title, says = _state(bundle, main, diagnosis)
    return Head(
        state=state,
        title=title,
        says=says,
        probability=diagnosis.probability if diagnosis else None,
        cause=taken or (causes[0] if causes and state != "fine" else None),
        causes=causes,
        recovery=main,
        after=_after(diagnosis) if main is not None else "",
        totals=totals_of(bundle, lines),
    )


def _main(recoveries: Sequence[Recovered]) -> Recovered | None:
    """The recovery a reader wants to hear of first: the deepest of those that helped, else of all."""
    helped = [one for one in recoveries if one.outcome == "recovered"]
    ended = [one for one in recoveries if one.ended]
    return (
        ended[-1]
        if ended
        else max(helped or recoveries, key=lambda one: (one.undone, one.order), default=None)
    )


def _state(bundle: Bundle, main: Recovered | None, diagnosis: Diagnosis | None) -> tuple[State, str, str]:
    if main is not None:
        return _state_after(bundle.recoveries, main, diagnosis)
    if diagnosis is None:
        return "unknown", "Not diagnosed", "Nobody has looked at this run yet: `agentguard diagnose` does."
    if diagnosis.verdict is Verdict.NO_FAILURE:
        return "fine", "No failure found", ""
    if diagnosis.verdict is Verdict.ABSTAINED:
        return (
            "unsure",
            "Not sure whether it failed",
            "The diagnosis abstains; its suspects are ranked below.",
        )
    return "failed", "Failed", ""


def _state_after(
    all: Sequence[Recovered], main: Recovered, diagnosis: Diagnosis | None
) -> tuple[State, str, str]:
    times = several(len(all), "time")
    if main.ended:
        return (
            "lost",
            "Stopped by the guard",
            f"The guard stepped in {times} and then ended the run: {main.ended}",
        )
    left = sum(one.undone for one in all)
    done = f"The guard stepped in {times}" + (
        f" and took back {several(left, 'step')} in all" if left else ""
    )
    done += f"; {_did(main)}." if main.back_to is not None else "."
    if all[-1].outcome == "failed" or (diagnosis is not None and diagnosis.verdict is Verdict.FAILURE):
        return "lost", "Failed, in spite of recovery", done
    if any(one.outcome == "planned" for one in all):
        return "pending", "Being recovered", f"{done} Whether that helped is not known yet."
    if main.outcome == "recovered":
        return "recovered", "Went wrong, and was recovered", done
    return "lost", "Recovery did not help", done


def _did(main: Recovered) -> str:
    """What the main recovery did, in words."""
    undone = [one for one in main.actions if one.get("action") == "Compensate"]
    count = sum(len(one.get("effects") or ()) for one in undone)
    said = f"at step {main.step} it went back"
    return f"{said} and undid {several(count, 'effect')} of its tools" if count else said


def _after(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return ""
    said = _FINAL[diagnosis.verdict]
    return f"The run as it ended {said} (probability of failure {percent(diagnosis.probability)})."


def _taken(main: Recovered, lines: Lines, quotes: Quotes) -> Cause:
    """The cause of a recovery: the hypothesis it acted on, on the line that it left."""
    line = lines.of(main)
    there = 0 <= main.step < len(line.steps)
    return Cause(
        rank=1,
        line=line.owners[main.step] if there else LIVE,
        step=main.step,
        agent=line.steps[main.step].agent if there else "",
        module="",
        codes=tuple(named(code) for code in main.codes),
        probability=0.0,
        reason=main.reason,
        correction=main.told,
        quotes=quotes.add(main.evidence, line.steps, line.owners, chief=True),
        there=there,
    )


def _causes(diagnosis: Diagnosis, live: Line, quotes: Quotes, *, chief: bool) -> tuple[Cause, ...]:
    return tuple(
        _cause(one, rank, live, quotes, chief=chief and rank == 1)
        for rank, one in enumerate(diagnosis.hypotheses, 1)
        if rank <= _SUSPECTS or one.probability >= _LIKELY
    )


def _cause(one: Hypothesis, rank: int, live: Line, quotes: Quotes, *, chief: bool) -> Cause:
    return Cause(
        rank=rank,
        line=LIVE,
        step=one.step,
        agent=one.agent,
        module=one.module or "",
        codes=tuple(named(code) for code in one.codes),
        probability=one.probability,
        reason=one.reason,
        correction=one.correction,
        quotes=quotes.add(one.evidence, live.steps, live.owners, chief=chief),
        there=0 <= one.step < len(live.steps),
    )


def totals_of(bundle: Bundle, lines: Lines) -> Totals:
    """Sums over all lines: what was left behind has been paid for, too."""
    steps = [step for line in lines for step in line.own]
    used = [step.usage for step in steps if step.usage is not None]
    counted = [one for one in used if one.prompt_tokens is not None or one.completion_tokens is not None]
    costs = [one.cost_usd for one in used if one.cost_usd is not None]
    timing = (
        tuple((part, value) for part, value in bundle.diagnosis.timing.items()) if bundle.diagnosis else ()
    )
    return Totals(
        steps=len(lines.live.steps),
        left=sum(len(line.own) for line in lines.branches),
        turns=turns_of_agents(lines.live.steps),
        tokens=sum((u.prompt_tokens or 0) + (u.completion_tokens or 0) for u in counted) if counted else None,
        cost=sum(costs) if costs else None,
        duration=_span(steps),
        guard=_guard_seconds(bundle, timing),
        timing=timing,
    )


def _span(steps: Sequence[Step]) -> float | None:
    begun = [step.started_at for step in steps if step.started_at is not None]
    ends = [step.ended_at for step in steps if step.ended_at is not None]
    if not begun or not (ends or len(begun) > 1):
        return None
    span = max(*ends, *begun) - min(begun) if ends else max(begun) - min(begun)
    if span > 0:
        return span
    lasted = [seconds for step in steps if (seconds := seconds_of(step)) is not None]
    return sum(lasted) if lasted else None


def _guard_seconds(bundle: Bundle, timing: Sequence[tuple[str, float]]) -> float | None:
    """Seconds the guard itself took: inside the run where that was kept, and for the diagnosis."""
    kept = bundle.run.extra.get("agentguard")
    within = kept.get("guard_s") if isinstance(kept, dict) else None
    total = dict(timing).get("total_s")
    known = [value for value in (within, total) if isinstance(value, int | float)]
    return float(sum(known)) if known else None
