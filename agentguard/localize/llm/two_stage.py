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
from agentguard.judge.base import ChoiceQuestion, JudgeAnswer, TextGenerator
from agentguard.localize._roles import find_agent_steps
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.taxonomy.loader import TaxonomyCatalog
from agentguard.taxonomy.model import TaxonomyCode
from agentguard.trajectory.model import Trajectory

TAXONOMY: Final = "agent_error"
NO_ERROR: Final = "none"
_MODULES: Final = ("memory", "reflection", "planning", "action")
_FIRST_STEP_MODULES: Final = ("planning", "action")
_ERROR_THRESHOLD: Final = 0.5
_MAX_STEPS: Final = 400
_FEEDBACK_PROMPT: Final = (
    "Write one or two sentences to the agent, which is taken back to before step {step}: what it did wrong "
    "there, and what to do instead."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """What stage 1 says of a step: how likely it erred, in which part, and with which code."""

    step: int
    probability: float
    module: str
    code: TaxonomyCode | None = None


def build_two_stage(**options: Any) -> LlmLocalizer:
    """Make the localizer; options as `agentguard.localize.llm.base.build_llm_localizer` takes them."""
    return build_llm_localizer("two_stage", query_two_stages, options)


def query_two_stages(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Both stages."""
    stage1 = find_step_errors(session, run, findings)
    if stage1 is None:
        return StepRanking()
    suspects = tuple(one for one in stage1 if one.probability >= _ERROR_THRESHOLD) or stage1
    found = session.ask_choice(run, build_critical_question(suspects, stage1))
    if found is None:
        return StepRanking()
    steps = {int(step): share for step, share in found.items()}
    told = {one.step: _build_step_error_details(one) for one in suspects}
    best = max(steps, key=lambda step: (steps[step], -step))
    if (said := _generate_feedback(session, run, best)) is not None:
        told[best]["correction"] = said
    return StepRanking(probabilities=steps, details=told)


def find_step_errors(
    session: QuerySession, run: Trajectory, findings: Sequence[Finding]
) -> tuple[StepError, ...] | None:
    """Which steps erred; None if the judge could not be asked at all."""
    steps = (find_agent_steps(run) or tuple(step.index for step in run.steps))[:_MAX_STEPS]
    asked = [_build_module_question(step, first=place == 0) for place, step in enumerate(steps)]
    found = [
        _parse_step_error(step, answer) for step, answer in zip(steps, session.ask(run, asked), strict=True)
    ]
    held = {one.step: one for one in found if one is not None}
    if not held:
        return None
    wrong = [one for one in held.values() if one.probability >= _ERROR_THRESHOLD]
    answers = session.ask(run, [_build_code_question(one) for one in wrong])
    for one, answer in zip(wrong, answers, strict=True):
        held[one.step] = StepError(
            step=one.step,
            probability=one.probability,
            module=one.module,
            code=_select_most_likely_code(one.module, answer),
        )
    for finding in findings:
        code = _find_system_code(finding)
        if code is not None and finding.step in held and held[finding.step].probability < finding.probability:
            held[finding.step] = StepError(
                step=finding.step, probability=finding.probability, module="system", code=code
            )
    return tuple(held[step] for step in steps if step in held)


def build_critical_question(
    suspects: Sequence[StepError], step_errors: Sequence[StepError]
) -> ChoiceQuestion:
    """Which of the steps that erred is the critical one."""
    text = (
        "Which of these steps is the critical error: the earliest one whose correction would have changed "
        "the outcome of the task?"
    )
    return ChoiceQuestion(
        id="critical_error",
        text=text,
        options=tuple(str(one.step) for one in suspects),
        context=tuple(_format_step_error(one) for one in step_errors if one.probability >= _ERROR_THRESHOLD),
    )


def _build_module_question(step: int, *, first: bool) -> ChoiceQuestion:
    parts = _FIRST_STEP_MODULES if first else _MODULES
    text = f"Which part of the agent's turn in step {step} went wrong, if any?"
    return ChoiceQuestion(id=f"part_{step}", text=text, options=(NO_ERROR, *parts))


def _parse_step_error(step: int, answer: JudgeAnswer) -> StepError | None:
    if answer.error is not None:
        return None
    parts = {part: share for part, share in answer.probabilities.items() if part != NO_ERROR}
    module = max(parts, key=lambda part: parts[part])
    return StepError(step=step, probability=1.0 - answer.probabilities[NO_ERROR], module=module)


def _build_code_question(error: StepError) -> ChoiceQuestion:
    text = f"Step {error.step}: which {error.module} error is it?"
    return ChoiceQuestion(
        id=f"code_{error.step}", text=text, options=tuple(_load_codes_by_title(error.module))
    )


def _select_most_likely_code(module: str, answer: JudgeAnswer) -> TaxonomyCode | None:
    if answer.error is not None:
        return None
    return _load_codes_by_title(module)[
        max(answer.probabilities, key=lambda title: answer.probabilities[title])
    ]


@lru_cache(maxsize=8)
def _load_codes_by_title(module: str) -> Mapping[str, TaxonomyCode]:
    return {code.title: code for code in _load_codes() if code.module == module}


@lru_cache(maxsize=1)
def _load_codes() -> tuple[TaxonomyCode, ...]:
    return TaxonomyCatalog.load().get_taxonomy(TAXONOMY).codes


def _find_system_code(finding: Finding) -> TaxonomyCode | None:
    wanted = {code.removeprefix(f"{TAXONOMY}:") for code in finding.codes}
    return next((code for code in _load_codes() if code.id in wanted and code.module == "system"), None)


def _format_step_error(error: StepError) -> str:
    return f"step {error.step}: {error.module}" + (f", {error.code.title}" if error.code else "")


def _build_step_error_details(error: StepError) -> dict[str, Any]:
    told: dict[str, Any] = {
        "module": error.module,
        "reason": f"{_format_step_error(error)} ({error.probability:.0%})",
    }
    if error.code is not None:
        told |= {"codes": (error.code.qualified_id,), "correction": error.code.correction}
    return told


def _generate_feedback(session: QuerySession, run: Trajectory, step: int) -> str | None:
    """Corrective feedback in the judge's own words; None if it cannot write, or could not now."""
    if not isinstance(session.judge, TextGenerator):
        return None
    written = session.judge.generate_text(run, _FEEDBACK_PROMPT.format(step=step))
    session.add_usage(written.usage)
    return written.text or None
