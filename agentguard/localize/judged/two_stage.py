"""``two_stage``: each part of each step first, then the critical error (AgentDebug, arXiv 2509.25370).

As published, stage 1 is a call for each of memory, reflection, planning and action in each step, with the
definitions and the step in each prompt; stage 2 is one call over all of that: the earliest error whose
correction would have changed the outcome, with corrective feedback. Here the questions of both stages come
after one and the same transcript, which the server computes once, and are as short as they can be:

1. for each step of an agent: which part erred, if any (no memory and no reflection before the first step);
   for the parts that did, with which error of the taxonomy; errors of the system come from the rules;
2. which of the steps that erred is the critical one, with what stage 1 said beside the run;
3. the feedback for that step, written by the judge if it can write, else the taxonomy's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import Answer, Choice
from agentguard.judge.writing import Writer
from agentguard.localize.judged.asking import Asking
from agentguard.localize.judged.method import Judged, Ranked, judged
from agentguard.localize.roles import agent_steps
from agentguard.taxonomy.load import Taxonomies
from agentguard.taxonomy.model import Code
from agentguard.trajectory.model import Trajectory

TAXONOMY: Final = "agent_error"
SOUND: Final = "none"
_PARTS: Final = ("memory", "reflection", "planning", "action")
_FIRST: Final = ("planning", "action")
_ERRED: Final = 0.5
_MOST_STEPS: Final = 400
_FEEDBACK: Final = (
    "Write one or two sentences to the agent, which is taken back to before step {step}: what it did wrong "
    "there, and what to do instead."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erred:
    """What stage 1 says of a step: how likely it erred, in which part, and with which code."""

    step: int
    probability: float
    module: str
    code: Code | None = None


def two_stage(**options: Any) -> Judged:
    """Make the localizer; options as `agentguard.localize.judged.method.judged` takes them."""
    return judged("two_stage", ask, options)


def ask(asking: Asking, run: Trajectory, findings: Sequence[Finding]) -> Ranked:
    """Both stages."""
    stage1 = first_stage(asking, run, findings)
    if stage1 is None:
        return Ranked()
    suspects = tuple(one for one in stage1 if one.probability >= _ERRED) or stage1
    found = asking.choose(run, critical(suspects, stage1))
    if found is None:
        return Ranked()
    steps = {int(step): share for step, share in found.items()}
    told = {one.step: _told(one) for one in suspects}
    best = max(steps, key=lambda step: (steps[step], -step))
    if (said := _feedback(asking, run, best)) is not None:
        told[best]["correction"] = said
    return Ranked(steps=steps, told=told)


def first_stage(asking: Asking, run: Trajectory, findings: Sequence[Finding]) -> tuple[Erred, ...] | None:
    """Which steps erred; None if the judge could not be asked at all."""
    steps = (agent_steps(run) or tuple(step.index for step in run.steps))[:_MOST_STEPS]
    asked = [_part_question(step, first=place == 0) for place, step in enumerate(steps)]
    found = [_erred(step, answer) for step, answer in zip(steps, asking.ask(run, asked), strict=True)]
    held = {one.step: one for one in found if one is not None}
    if not held:
        return None
    wrong = [one for one in held.values() if one.probability >= _ERRED]
    answers = asking.ask(run, [_code_question(one) for one in wrong])
    for one, answer in zip(wrong, answers, strict=True):
        held[one.step] = Erred(
            step=one.step, probability=one.probability, module=one.module, code=_likeliest(one.module, answer)
        )
    for finding in findings:
        code = _system_code(finding)
        if code is not None and finding.step in held and held[finding.step].probability < finding.probability:
            held[finding.step] = Erred(
                step=finding.step, probability=finding.probability, module="system", code=code
            )
    return tuple(held[step] for step in steps if step in held)


def critical(suspects: Sequence[Erred], stage1: Sequence[Erred]) -> Choice:
    """Which of the steps that erred is the critical one."""
    text = (
        "Which of these steps is the critical error: the earliest one whose correction would have changed "
        "the outcome of the task?"
    )
    return Choice(
        id="critical_error",
        text=text,
        options=tuple(str(one.step) for one in suspects),
        shown=tuple(_line(one) for one in stage1 if one.probability >= _ERRED),
    )


def _part_question(step: int, *, first: bool) -> Choice:
    parts = _FIRST if first else _PARTS
    text = f"Which part of the agent's turn in step {step} went wrong, if any?"
    return Choice(id=f"part_{step}", text=text, options=(SOUND, *parts))


def _erred(step: int, answer: Answer) -> Erred | None:
    if answer.error is not None:
        return None
    parts = {part: share for part, share in answer.probabilities.items() if part != SOUND}
    module = max(parts, key=lambda part: parts[part])
    return Erred(step=step, probability=1.0 - answer.probabilities[SOUND], module=module)


def _code_question(one: Erred) -> Choice:
    text = f"Step {one.step}: which {one.module} error is it?"
    return Choice(id=f"code_{one.step}", text=text, options=tuple(_titles(one.module)))


def _likeliest(module: str, answer: Answer) -> Code | None:
    if answer.error is not None:
        return None
    return _titles(module)[max(answer.probabilities, key=lambda title: answer.probabilities[title])]


@lru_cache(maxsize=8)
def _titles(module: str) -> Mapping[str, Code]:
    return {code.title: code for code in _codes() if code.module == module}


@lru_cache(maxsize=1)
def _codes() -> tuple[Code, ...]:
    return Taxonomies.load().get(TAXONOMY).codes


def _system_code(finding: Finding) -> Code | None:
    wanted = {code.removeprefix(f"{TAXONOMY}:") for code in finding.codes}
    return next((code for code in _codes() if code.id in wanted and code.module == "system"), None)


def _line(one: Erred) -> str:
    return f"step {one.step}: {one.module}" + (f", {one.code.title}" if one.code else "")


def _told(one: Erred) -> dict[str, Any]:
    told: dict[str, Any] = {"module": one.module, "reason": f"{_line(one)} ({one.probability:.0%})"}
    if one.code is not None:
        told |= {"codes": (one.code.qualified,), "correction": one.code.correction}
    return told


def _feedback(asking: Asking, run: Trajectory, step: int) -> str | None:
    """Corrective feedback in the judge's own words; None if it cannot write, or could not now."""
    if not isinstance(asking.judge, Writer):
        return None
    written = asking.judge.write_line(run, _FEEDBACK.format(step=step))
    asking.count(written.usage)
    return written.text or None
