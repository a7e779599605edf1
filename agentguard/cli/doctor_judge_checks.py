"""Checks of ``agentguard doctor`` for the judges of a policy: they answer, and in the required form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from agentguard.cli.doctor_checks import CheckContext, CheckResult, Condition
from agentguard.errors import AgentGuardError

if TYPE_CHECKING:
    from agentguard.config.judge import JudgeSettings, QuestionJudgeSettings
    from agentguard.judge.base import Question
    from agentguard.judge.classifier.spec import ClassifierSpec
    from agentguard.trajectory.model import Trajectory

_UNREACHABLE_HINT: Final = "check that its server runs"
_TIMEOUT_HINT: Final = "increase --timeout: the first structured output of a new server may take 30 s"


def check_judges(settings: JudgeSettings, context: CheckContext) -> Iterator[CheckResult]:
    """Check the judge of a policy and the second one, at each of their addresses."""
    for judge_settings in (settings, settings.second):
        if judge_settings is not None:
            for replica_settings in _split_replicas(judge_settings):
                check_settings = replica_settings.model_copy(update={"deadline_s": context.timeout_s})
                try:
                    yield from (
                        _check_pooling_judge(check_settings)
                        if replica_settings.kind == "pooling"
                        else _check_chat_judge(check_settings, replica_settings, context)
                    )
                except AgentGuardError as error:
                    yield _build_result(check_settings, "wrong", str(error), "correct the policy's judge")


def _split_replicas(settings: QuestionJudgeSettings) -> Iterator[QuestionJudgeSettings]:
    """Yield the settings of each address of a judge."""
    if settings.base_url is not None:
        yield settings
        return
    for replica in settings.replicas:
        replica_options = {"url": replica} if isinstance(replica, str) else replica
        update = {"base_url": str(replica_options.get("url", "")), "replicas": (), "pool": None}
        update["api_key_env"] = cast("str | None", replica_options.get("api_key_env", settings.api_key_env))
        yield settings.model_copy(update=update)


def _build_result(
    settings: QuestionJudgeSettings, condition: Condition, found: str, remedy: str = ""
) -> CheckResult:
    return CheckResult(
        area="judge", what=settings.base_url or "", condition=condition, found=found, remedy=remedy
    )


def _check_chat_judge(
    settings: QuestionJudgeSettings, policy_settings: QuestionJudgeSettings, context: CheckContext
) -> Iterator[CheckResult]:
    """Check that a chat model answers and follows a JSON schema; optionally measure its accuracy."""
    from agentguard.evals.judge_checks.capability import PROBE_MESSAGES
    from agentguard.judge.base import TEXT_SCHEMA
    from agentguard.judge.factory import build_endpoint
    from agentguard.judge.llm.types import CallError, ErrorKind

    endpoint = build_endpoint(settings)
    try:
        facts = endpoint.loop.run(endpoint.fetch_info(context.timeout_s))
        if isinstance(facts, CallError):
            yield _build_result(settings, "wrong", endpoint.describe_error(facts), _UNREACHABLE_HINT)
            return
        answer = endpoint.loop.run(
            endpoint.generate_json(PROBE_MESSAGES, TEXT_SCHEMA, max_tokens=200, deadline_s=context.timeout_s)
        )
    finally:
        endpoint.close()
    if isinstance(answer, CallError):
        problem = f"no structured output: {answer.kind}"
        remedy = (
            _TIMEOUT_HINT if answer.kind is ErrorKind.TIMEOUT else "enable structured outputs at the server"
        )
        yield _build_result(settings, "wrong", problem, remedy)
        return
    probe_hint = "" if context.probe else "; --probe measures its accuracy"
    yield _build_result(settings, "ok", f"{facts.version}, structured outputs{probe_hint}")
    if context.probe:
        yield _check_judgement_quality(policy_settings)


def _check_judgement_quality(settings: QuestionJudgeSettings) -> CheckResult:
    """Measure how well a chat model judges the reference runs, within the deadlines of the policy."""
    from agentguard.evals.judge_checks.capability import check_endpoint
    from agentguard.judge.factory import build_chat_options, build_endpoint

    endpoint = build_endpoint(settings)
    try:
        capability = check_endpoint(endpoint, options=build_chat_options(settings))
    finally:
        endpoint.close()
    summary = (
        f"{capability.describe_quality()} ({capability.asked} of {capability.runs} reference runs answered)"
    )
    if capability.is_usable() and capability.is_above_chance():
        return _build_result(settings, "ok", summary)
    remedy = f"serve another model; details: agentguard judge check {settings.base_url}"
    return _build_result(settings, "wrong", summary, remedy)


def _check_pooling_judge(settings: QuestionJudgeSettings) -> Iterator[CheckResult]:
    """Check that each classifier answers the questions that it was trained for."""
    from agentguard.evals.judge_checks.reference_cases import build_reference_runs
    from agentguard.judge.factory import build_pooling_judge

    judge, run = build_pooling_judge(settings), build_reference_runs()[0].run
    try:
        for classifier in judge.classifiers:
            (answer,) = judge.decide(run, (_build_question(classifier, run),))
            if answer.error is None:
                yield _build_result(settings, "ok", f"{classifier.task} answers {classifier.question}")
                continue
            remedy = (
                "serve the model that the policy describes: "
                f"agentguard judge serve MODEL --task {classifier.task}"
            )
            yield _build_result(
                settings,
                "wrong",
                f"{classifier.task} does not answer {classifier.question}: {answer.error}",
                remedy,
            )
    finally:
        judge.close()


def _build_question(classifier: ClassifierSpec, run: Trajectory) -> Question:
    """Build a question with an id that the classifier answers; its meaning does not matter."""
    from agentguard.judge.base import ChoiceQuestion

    steps = tuple(str(step.index) for step in run.steps)
    options = steps if classifier.by == "step" else classifier.classes or ("yes", "no")
    return ChoiceQuestion(
        id=classifier.question.removesuffix("*"),
        text="Which one is it?",
        options=options,
        context=("A message.",),
    )
