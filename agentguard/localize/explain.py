"""Why a step, for a person: codes, evidence and a correction read off its features by a short table of rules.

What detectors found at the step comes first; these rules speak where nothing was found. They are not learnt,
and a leaf code is a hint: annotators themselves agree on leaves poorly (a kappa of 0.05 to 0.55), so that
nothing should be driven by the code alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentguard.detect.base import Evidence, Finding
from agentguard.detect.phrases import made_up
from agentguard.detect.quotes import cite
from agentguard.detect.text import lowered, sentence
from agentguard.judge.features.layout import Layout, Role
from agentguard.trajectory.model import Step

Row = Mapping[str, float]
Quote = Callable[["Layout", int], tuple[Evidence, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A rule: when it holds of a step's features, what it means, where to quote and what to do instead."""

    name: str
    holds: Callable[[Row], bool]
    codes: tuple[str, ...]
    reason: str
    correction: str
    quote: Quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is said of one step."""

    module: str | None
    codes: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    correction: str
    reason: str


_MOST_QUOTES = 3
_TELLING = frozenset({"made_up", "strayed", "gave_up", "unsourced"})
"""Signs that say more of a step than that the environment answered it with an error."""
_MODULES = ("memory", "reflection", "planning", "action", "system")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_TEXT = re.compile(r"\S")


def account(held: Layout, index: int, row: Row, findings: list[Finding]) -> Account:
    """Say why a step may be the root cause; ``findings`` are those at this step, in any order."""
    signs = [sign for sign in SIGNS if sign.holds(row)]
    telling = next((sign for sign in signs if sign.name in _TELLING), None)
    only_answered = bool(findings) and all(map(_environmental, findings))
    sign = telling if telling and only_answered else signs[0]
    reason = f"{_standing(row)}; {sign.reason}"
    if not findings or (telling and only_answered):
        evidence = sign.quote(held, index) or _opening(held, index)
        answered = (quote for finding in findings for quote in finding.evidence)
        return Account(
            module=_module(sign.codes),
            codes=sign.codes,
            evidence=tuple(dict.fromkeys((*evidence, *answered)))[:_MOST_QUOTES],
            correction=sign.correction.format(step=index),
            reason=reason,
        )
    ranked = sorted(findings, key=lambda f: (_environmental(f), -f.probability, f.detector, f.message))
    codes = tuple(dict.fromkeys(code for finding in ranked for code in finding.codes))
    quotes = tuple(dict.fromkeys(quote for finding in ranked for quote in finding.evidence))[:_MOST_QUOTES]
    correction = next((f.correction for f in ranked if f.correction), sign.correction.format(step=index))
    return Account(
        module=_module(codes),
        codes=codes,
        evidence=quotes or sign.quote(held, index) or _opening(held, index),
        correction=correction,
        reason=f"{ranked[0].message.rstrip('.')}; {_standing(row)}",
    )


def _environmental(finding: Finding) -> bool:
    """Whether a finding says only what the environment answered; what the agent did to get that says more."""
    return _module(finding.codes) == "system"


def _module(codes: tuple[str, ...]) -> str | None:
    for code in codes:
        taxonomy, _, rest = code.partition(":")
        module = rest.partition(".")[0]
        if taxonomy == "agent_error" and module in _MODULES:
            return module
    return None


def _standing(row: Row) -> str:
    """Where the step stands, in words."""
    if row["role.brief"]:
        return "it hands on the task"
    if row["role.orchestrator"]:
        return "it steers the others"
    if row["role.first_turn"]:
        return "it is the first turn of work"
    if row["role.last_turn"]:
        return "it is the last turn of work"
    return f"it is turn {int(row['role.turn']) + 1} of {int(row['role.turns'])} of work"


def _made_up(held: Layout, index: int) -> tuple[Evidence, ...]:
    for field, text in held.run.steps[index].texts():
        low = lowered(text)
        span = None if field.startswith("observations") else made_up(low)
        if span:
            return cite(held.run.steps[index], field, *sentence(low, *span))
    return ()


def _outcome(held: Layout, index: int) -> tuple[Evidence, ...]:
    """The end of what came back: where an error names itself."""
    step = held.run.steps[index]
    if step.observations:
        return _tail(step, f"observations[{len(step.observations) - 1}]")
    after = index + 1
    if after < len(held.roles) and held.roles[after] is Role.EXECUTOR:
        return _tail(held.run.steps[after], "content")
    return ()


def _tail(step: Step, field: str) -> tuple[Evidence, ...]:
    text = step.text(field).rstrip()
    start = text.rfind("\n", 0, len(text)) + 1
    return cite(step, field, max(start, len(text) - 200), len(text))


def _number(held: Layout, index: int) -> tuple[Evidence, ...]:
    """The sentence with the first number that neither the task nor anything before it has."""
    step = held.run.steps[index]
    for found in _NUMBER.finditer(step.content):
        number = found.group().replace(",", "").rstrip(".")
        known = any(number in held.said[i].numbers for i in range(max(0, index - 20), index))
        if len(number) > 1 and number not in held.run.task and not known:
            return cite(step, "content", *sentence(lowered(step.content), *found.span()))
    return ()


def _opening(held: Layout, index: int) -> tuple[Evidence, ...]:
    """The first sentence of the step."""
    step = held.run.steps[index]
    for field, text in step.texts():
        first = _TEXT.search(text)
        if first:
            return cite(step, field, *sentence(lowered(text), *first.span()))
    return ()


SIGNS = (
    Sign(
        name="made_up",
        holds=lambda row: (
            row["wording.assume"] > 0 and max(row["code.stand_ins"], 2 * row["rate.assume"]) >= 1
        ),
        codes=("agent_error:memory.hallucination", "agentrx:invention_of_new_information"),
        reason="it works with assumed or placeholder values",
        correction="Do not assume or simulate values in step {step}: get each from a source or a tool first, "
        "and say which; if none has it, say so and stop.",
        quote=_made_up,
    ),
    Sign(
        name="strayed",
        holds=lambda row: row["role.brief"] > 0 and row["brief.repeats_task"] < 0.5,
        codes=("mast:disobey_task_specification", "agent_error:planning.constraint_ignorance"),
        reason="what it asks for says little of the task",
        correction="Restate the task in full in step {step}, with every constraint, and plan from that.",
        quote=_opening,
    ),
    Sign(
        name="failed",
        holds=lambda row: row["outcome.failed"] > 0 and (row["form.code"] > 0 or row["form.calls"] > 0),
        codes=("agent_error:action.invalid_action", "agentrx:invalid_invocation"),
        reason="what it ran failed",
        correction="Do not run step {step} as it is: read the error it returned, change what it names, "
        "and test that on a small case before going on.",
        quote=_outcome,
    ),
    Sign(
        name="gave_up",
        holds=lambda row: row["evidence.gives_up"] > 0 or row["evidence.talks_after_failure"] > 0,
        codes=("agent_error:reflection.outcome_misinterpretation", "mast:no_or_incomplete_verification"),
        reason="the run before it failed, and it goes on in words alone",
        correction="Do not answer from memory in step {step}: the last run returned no result. Get the "
        "missing result another way, and use nothing that no result shows.",
        quote=_number,
    ),
    Sign(
        name="unsourced",
        holds=lambda row: row["claim.final_numbers"] > 0 or row["claim.made"] > 0,
        codes=("agentrx:invention_of_new_information", "agent_error:memory.hallucination"),
        reason="it states values that nothing before it shows",
        correction="Name the source of every value stated in step {step}; look up those that have none "
        "before using them.",
        quote=_number,
    ),
    Sign(
        name="promised",
        holds=lambda row: row["evidence.idle"] > 0,
        codes=("agent_error:reflection.progress_misjudge", "mast:no_or_incomplete_verification"),
        reason="it announces or agrees, and does nothing",
        correction="In step {step}, do the work now instead of announcing it, and show its result.",
        quote=_opening,
    ),
    Sign(
        name="steered",
        holds=lambda row: row["role.orchestrator"] > 0,
        codes=("agent_error:planning.inefficient_plan", "mast:task_derailment"),
        reason="what it decides sets the course of the next turns",
        correction="Reconsider the decision of step {step}: say what of the task is still open and what the "
        "last result really shows, and choose the next instruction from that.",
        quote=_opening,
    ),
    Sign(
        name="acted",
        holds=lambda row: row["form.code"] > 0 or row["form.calls"] > 0 or row["evidence.runs"] > 0,
        codes=("agent_error:action.misalignment", "agentrx:intent_plan_misalignment"),
        reason="later steps build on what it ran",
        correction="Check in step {step} that what is run answers the task as asked, constraint by "
        "constraint, and compare its result with a second source.",
        quote=_opening,
    ),
    Sign(
        name="said",
        holds=lambda row: True,  # noqa: ARG005
        codes=("agent_error:planning.inefficient_plan", "mast:no_or_incomplete_verification"),
        reason="later steps build on what it says",
        correction="Verify what step {step} says against the task and a source before building on it.",
        quote=_opening,
    ),
)
