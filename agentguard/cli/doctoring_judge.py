"""What ``agentguard doctor`` looks at in a policy's judges: that they answer, and in the form asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from agentguard.cli.doctoring import Asked, Condition, Line
from agentguard.errors import AgentGuardError

if TYPE_CHECKING:
    from agentguard.judge.base import Question
    from agentguard.judge.classifier import Classifier
    from agentguard.settings_judge import AskedSettings, JudgeSettings
    from agentguard.trajectory.model import Trajectory

_QUESTION: Final = ({"role": "user", "content": "Say one short word, as JSON with the one field text."},)
_AWAY: Final = "look whether its server runs"
_SLOW: Final = "give it longer with --timeout: a server that is new may take half a minute for its first one"


def judges(settings: JudgeSettings, asked: Asked) -> Iterator[Line]:
    """Lines about a policy's judge and the second one, at each of their addresses."""
    for one in (settings, settings.second):
        if one is not None:
            for at in _each(one):
                here = at.model_copy(update={"deadline_s": asked.timeout_s})
                try:
                    yield from _pooling(here) if at.kind == "pooling" else _chat(here, at, asked)
                except AgentGuardError as error:
                    yield _line(here, "wrong", str(error), "correct the policy's judge")


def _each(settings: AskedSettings) -> Iterator[AskedSettings]:
    """The settings for one address at a time, where there are replicas."""
    if settings.base_url is not None:
        yield settings
        return
    for one in settings.replicas:
        told = {"url": one} if isinstance(one, str) else one
        update = {"base_url": str(told.get("url", "")), "replicas": (), "pool": None}
        update["api_key_env"] = cast("str | None", told.get("api_key_env", settings.api_key_env))
        yield settings.model_copy(update=update)


def _line(settings: AskedSettings, condition: Condition, found: str, way_out: str = "") -> Line:
    return Line(area="judge", what=settings.base_url or "", condition=condition, found=found, way_out=way_out)


def _chat(here: AskedSettings, given: AskedSettings, asked: Asked) -> Iterator[Line]:
    """Whether a chat model answers and keeps to a JSON schema; how well it judges, if that is asked for."""
    from agentguard.judge.configured import endpoint_of
    from agentguard.judge.wire import Failed, Fault
    from agentguard.judge.writing import FORM

    endpoint = endpoint_of(here)
    try:
        facts = endpoint.loop.run(endpoint.facts(asked.timeout_s))
        if isinstance(facts, Failed):
            yield _line(here, "wrong", f"{facts.fault}: {facts.message}", _AWAY)
            return
        written = endpoint.loop.run(
            endpoint.write(_QUESTION, FORM, max_tokens=200, deadline_s=asked.timeout_s)
        )
    finally:
        endpoint.close()
    if isinstance(written, Failed):
        found = f"no structured output: {written.fault}"
        way_out = _SLOW if written.fault is Fault.TIMEOUT else "serve it with structured outputs on"
        yield _line(here, "wrong", found, way_out)
        return
    more = "" if asked.canaries else "; how well: agentguard doctor CONFIG --canaries"
    yield _line(here, "ok", f"{facts.version}, structured outputs{more}")
    if asked.canaries:
        yield _judging(given)


def _judging(given: AskedSettings) -> Line:
    """How well a chat model judges the canary runs, within the deadlines of the policy."""
    from agentguard.evals.endpoint.check import check_endpoint
    from agentguard.judge.configured import endpoint_of

    endpoint = endpoint_of(given)
    try:
        found = check_endpoint(endpoint, deadline_s=given.deadline_s)
    finally:
        endpoint.close()
    told = f"{found.verdict()} ({found.asked} of {found.runs} canary runs answered)"
    if found.usable() and found.above_chance():
        return _line(given, "ok", told)
    way_out = f"serve another model; what it says of each: agentguard judge check {given.base_url}"
    return _line(given, "wrong", told, way_out)


def _pooling(here: AskedSettings) -> Iterator[Line]:
    """Whether each classifier answers what it is said to have been trained for."""
    from agentguard.evals.endpoint.canaries import canary_runs
    from agentguard.judge.configured import pooling_judge

    judge, run = pooling_judge(here), canary_runs()[0].run
    try:
        for by in judge.classifiers:
            (answer,) = judge.decide(run, (_question_for(by, run),))
            if answer.error is None:
                yield _line(here, "ok", f"{by.task} answers {by.question}")
                continue
            way_out = (
                f"serve the model that the policy describes: agentguard judge serve MODEL --task {by.task}"
            )
            yield _line(here, "wrong", f"{by.task} does not answer {by.question}: {answer.error}", way_out)
    finally:
        judge.close()


def _question_for(by: Classifier, run: Trajectory) -> Question:
    """A question that a classifier is to answer, whatever it means."""
    from agentguard.judge.base import Choice

    steps = tuple(str(step.index) for step in run.steps)
    options = steps if by.by == "step" else by.classes or ("yes", "no")
    return Choice(
        id=by.question.removesuffix("*"), text="Which one is it?", options=options, shown=("A message.",)
    )
