"""Whether an endpoint can do what a judge needs, how fast it is, and whether the model on it can judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from agentguard.evals.endpoint.against import CAUSE, OUTCOME, SAFETY, Answers
from agentguard.evals.endpoint.canaries import CanaryRun, canary_runs
from agentguard.evals.endpoint.safety_canaries import SafetyCanary, safety_canaries
from agentguard.evals.metrics import auroc, wilson
from agentguard.judge.base import RUN_FAILED, Answer, root_cause_question
from agentguard.judge.chat import ChatJudge, ChatOptions
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.safety import SafetyTier, described, question
from agentguard.judge.wire import Failed
from agentguard.judge.writing import FORM

_MESSAGE: Final = ({"role": "user", "content": "Say one short word, as JSON with the one field text."},)
_CONTEXT: Final = 4_096
"""Tokens below which most runs must be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What an endpoint can do.

    Attributes:
        model: what it serves; empty if it could not be asked.
        context: longest prompt and answer in tokens, where told.
        structured: whether it keeps to a JSON schema.
        logprobs: whether it gives the probability of its answers.
        raw: whether those are the model's own, before anything was masked.
        prefix_cache: share of the second question's prompt that was not computed again; None if not told.
        seconds_first, seconds_next: for the first question about a run, and for the second.
        auroc: how well it tells canary runs that failed from those that passed; 0.5 is chance.
        pairs: share of the tasks in which the run that failed is held likelier to have failed than the one
            that passed, ties half; chance is one in two.
        interval: 95 % Wilson interval of ``pairs``.
        cause: share of failed canary runs in which it names the step; chance is one in four.
        safety: share of the safety canaries whose tier it names; chance is one in four.
        answers: what it said of each canary, to compare it with another.
        asked: canary runs it answered for, of `runs`.
        faults: what went wrong, each kind once.
    """

    model: str = ""
    context: int | None = None
    structured: bool = False
    logprobs: bool = False
    raw: bool = False
    prefix_cache: float | None = None
    seconds_first: float | None = None
    seconds_next: float | None = None
    auroc: float | None = None
    pairs: float | None = None
    interval: tuple[float, float] | None = None
    cause: float | None = None
    safety: float | None = None
    answers: Answers = field(default_factory=Answers)
    asked: int = 0
    runs: int = 0
    faults: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        told = asdict(self) | {"verdict": self.verdict(), "usable": self.usable()}
        answers = self.answers.model_dump(mode="json")
        del told["answers"]
        return told | {"right": answers["right"], "rated": answers["rated"]}

    def usable(self) -> bool:
        """Whether a judge can be made of it: it answers, with probabilities, in a form that is kept to."""
        return bool(self.model) and self.logprobs and self.structured and self.asked > 0

    def above_chance(self) -> bool:
        """Whether its interval on the canary runs lies above chance."""
        return self.interval is not None and self.interval[0] > 0.5

    def verdict(self) -> str:
        """How well it judges, in a clause; said plainly where it is no better than a coin."""
        if self.interval is None:
            return "it could not be asked about the canary runs"
        low, high = self.interval
        if high < 0.5:
            return "it judges below chance: do not use it"
        if low <= 0.5:
            return "it judges no better than chance on these runs: do not use it"
        return "it tells runs that failed from those that passed" if low > 0.7 else "it judges above chance"


@dataclass
class _Told:
    """Answers about the canary runs as they come."""

    scores: dict[str, tuple[bool, float]] = field(default_factory=dict)
    causes: list[bool] = field(default_factory=list)
    right: dict[str, float] = field(default_factory=dict)
    rated: dict[str, SafetyTier] = field(default_factory=dict)
    safe: list[bool] = field(default_factory=list)
    faults: dict[str, None] = field(default_factory=dict)
    first: Answer | None = None
    second: Answer | None = None


def check_endpoint(endpoint: Endpoint, *, deadline_s: float = 60.0) -> Check:
    """Ask an endpoint all that a judge would, over the canary runs.

    Args:
        endpoint: who is asked.
        deadline_s: seconds for the questions about one run; the first may take long on a cold server.
    """
    facts = endpoint.loop.run(endpoint.facts(deadline_s))
    if isinstance(facts, Failed):
        return Check(faults=(f"{facts.fault}: {facts.message}",))
    written = endpoint.loop.run(endpoint.write(_MESSAGE, FORM, max_tokens=200, deadline_s=deadline_s))
    told, runs = _Told(), canary_runs()
    judge = ChatJudge(endpoint, options=ChatOptions(deadline_s=deadline_s))
    for one in runs:
        _ask(judge, one, told)
    for held in safety_canaries():
        _ask_safety(judge, held, told)
    if isinstance(written, Failed):
        told.faults[f"structured output: {written.fault}"] = None
    pairs = _pairs(runs, told.scores)
    return Check(
        model=facts.version,
        context=facts.context,
        structured=not isinstance(written, Failed),
        logprobs=bool(told.scores),
        raw=told.first is not None and told.first.usage.get("label_mass") is not None,
        prefix_cache=_cached(told.second),
        seconds_first=_seconds(told.first),
        seconds_next=_seconds(told.second),
        auroc=auroc(*zip(*told.scores.values(), strict=True)) if pairs else None,
        pairs=sum(pairs) / len(pairs) if pairs else None,
        interval=wilson(sum(pairs) / len(pairs), len(pairs)) if pairs else None,
        cause=sum(told.causes) / len(told.causes) if told.causes else None,
        safety=sum(told.safe) / len(told.safe) if told.safe else None,
        answers=Answers(model=facts.version, right=told.right, rated=told.rated),
        asked=len(told.scores),
        runs=len(runs),
        faults=tuple(told.faults),
    )


def short_context(check: Check) -> bool:
    """Whether most runs will have to be cut."""
    return check.context is not None and check.context < _CONTEXT


def _ask(judge: ChatJudge, one: CanaryRun, told: _Told) -> None:
    failed, cause = judge.decide(one.run, (RUN_FAILED, root_cause_question(one.run)))
    for answer in (failed, cause):
        if answer.error is not None:
            told.faults[str(answer.error)] = None
    if one.failed and cause.error is None:
        told.right[f"{CAUSE}:{one.run.id}"] = cause.probabilities[str(one.cause)]
    if failed.error is not None:
        return
    told.right[f"{OUTCOME}:{one.run.id}"] = failed.probabilities["yes" if one.failed else "no"]
    told.scores[one.run.id] = (one.failed, failed.probabilities["yes"])
    told.first, told.second = told.first or failed, told.second or (cause if cause.error is None else None)
    if one.failed and cause.error is None:
        named = max(cause.probabilities, key=lambda step: cause.probabilities[step])
        told.causes.append(named == str(one.cause))


def _ask_safety(judge: ChatJudge, one: SafetyCanary, told: _Told) -> None:
    (answer,) = judge.decide(one.run, (question(one.run.steps[-1]),))
    if answer.error is not None:
        told.faults[str(answer.error)] = None
        return
    held = {tier: answer.probabilities[described(tier)] for tier in SafetyTier}
    name = f"{SAFETY}:{one.run.id}"
    told.right[name] = held[one.tier]
    told.rated[name] = max(held, key=lambda tier: held[tier])
    told.safe.append(told.rated[name] is one.tier)


def _pairs(runs: Sequence[CanaryRun], scores: Mapping[str, tuple[bool, float]]) -> list[float]:
    """For each task that both runs of were answered for: 1 if the failed one scored higher, 0.5 for a tie."""
    won = []
    for passed, failed in zip(runs[::2], runs[1::2], strict=True):
        if passed.run.id in scores and failed.run.id in scores:
            one, other = scores[failed.run.id][1], scores[passed.run.id][1]
            won.append((one > other) + 0.5 * (one == other))
    return won


def _cached(answer: Answer | None) -> float | None:
    if answer is None:
        return None
    prompt, cached = answer.usage.get("prompt_tokens"), answer.usage.get("cached_tokens")
    return cached / prompt if isinstance(prompt, int) and prompt and isinstance(cached, int) else None


def _seconds(answer: Answer | None) -> float | None:
    return None if answer is None else float(answer.usage.get("seconds", 0.0))
