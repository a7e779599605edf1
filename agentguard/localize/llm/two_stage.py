"""Localizer ``two_stage``: errors of each step first, then the critical error (AgentDebug, arXiv 2509.25370).

In the published method, stage 1 is one call for each module (memory, reflection, planning, action) of each
step, with the definitions and the step in each prompt. Stage 2 is one call over these results. It names the
earliest error whose correction would have changed the outcome, with corrective feedback. Here the questions
of both stages follow one shared transcript, which the server computes once, and are as short as possible:

1. For each step of an agent: the module with an error, if any (no memory and no reflection before the first
   step). For each such module, the error code of the taxonomy. The rules supply errors of the system.
2. The critical step among the steps with an error, with the results of stage 1 as context.
3. The feedback for that step: from the judge if it can generate text, otherwise from the taxonomy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion, JudgeAnswer, TextGenerator
from agentguard.localize.agent_roles import find_agent_steps
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.taxonomy.catalog import TaxonomyCatalog
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
    """Result of stage 1 for a step: probability of an error, its module and its code."""

    step: int
    probability: float
    module: str
    code: TaxonomyCode | None = None


def build_two_stage(**options: Any) -> LlmLocalizer:
    """Build the localizer; options as for `agentguard.localize.llm.base.build_llm_localizer`."""
    return build_llm_localizer("two_stage", query_two_stages, options)


def query_two_stages(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Run both stages and generate the feedback."""
    stage1 = find_step_errors(session, run, findings)
    if stage1 is None:
        return StepRanking()
    suspects = tuple(one for one in stage1 if one.probability >= _ERROR_THRESHOLD) or stage1
    probabilities = session.ask_choice(run, build_critical_question(suspects, stage1))
    if probabilities is None:
        return StepRanking()
    steps = {int(step): share for step, share in probabilities.items()}
    details = {one.step: _build_step_error_details(one) for one in suspects}
    best = max(steps, key=lambda step: (steps[step], -step))
    if (feedback := _generate_feedback(session, run, best)) is not None:
        details[best]["correction"] = feedback
    return StepRanking(probabilities=steps, details=details)


def find_step_errors(
    session: QuerySession, run: Trajectory, findings: Sequence[Finding]
) -> tuple[StepError, ...] | None:
    """Run stage 1; return None if the judge could not answer any question."""
    steps = (find_agent_steps(run) or tuple(step.index for step in run.steps))[:_MAX_STEPS]
    questions = [_build_module_question(step, first=index == 0) for index, step in enumerate(steps)]
    parsed_errors = [
        _parse_step_error(step, answer)
        for step, answer in zip(steps, session.ask(run, questions), strict=True)
    ]
    error_of_step = {one.step: one for one in parsed_errors if one is not None}
    if not error_of_step:
        return None
    probable_errors = [one for one in error_of_step.values() if one.probability >= _ERROR_THRESHOLD]
    answers = session.ask(run, [_build_code_question(one) for one in probable_errors])
    for one, answer in zip(probable_errors, answers, strict=True):
        error_of_step[one.step] = StepError(
            step=one.step,
            probability=one.probability,
            module=one.module,
            code=_select_most_likely_code(one.module, answer),
        )
    for finding in findings:
        code = _find_system_code(finding)
        if (
            code is not None
            and finding.step in error_of_step
            and error_of_step[finding.step].probability < finding.probability
        ):
            error_of_step[finding.step] = StepError(
                step=finding.step, probability=finding.probability, module="system", code=code
            )
    return tuple(error_of_step[step] for step in steps if step in error_of_step)


def build_critical_question(
    suspects: Sequence[StepError], step_errors: Sequence[StepError]
) -> ChoiceQuestion:
    """Build the question for the critical step among those that erred."""
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
    code_ids = {code.removeprefix(f"{TAXONOMY}:") for code in finding.codes}
    return next((code for code in _load_codes() if code.id in code_ids and code.module == "system"), None)


def _format_step_error(error: StepError) -> str:
    return f"step {error.step}: {error.module}" + (f", {error.code.title}" if error.code else "")


def _build_step_error_details(error: StepError) -> dict[str, Any]:
    details: dict[str, Any] = {
        "module": error.module,
        "reason": f"{_format_step_error(error)} ({error.probability:.0%})",
    }
    if error.code is not None:
        details |= {"codes": (error.code.qualified_id,), "correction": error.code.correction}
    return details


def _generate_feedback(session: QuerySession, run: Trajectory, step: int) -> str | None:
    """Generate corrective feedback; return None if the judge cannot generate text, or failed to."""
    if not isinstance(session.judge, TextGenerator):
        return None
    reply = session.judge.generate_text(run, _FEEDBACK_PROMPT.format(step=step))
    session.add_usage(reply.usage)
    return reply.text or None
