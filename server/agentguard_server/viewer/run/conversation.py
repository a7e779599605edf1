"""Steps of a run as turns of a conversation, with speakers, texts, tool calls and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.detect.result_classification import classify_result
from agentguard.trajectory.model import Observation, Step
from agentguard_server.viewer.data.run_data import DAMAGED_ROW_KEY
from agentguard_server.viewer.run.branches import BranchView
from agentguard_server.viewer.run.effect_ledger import EffectEntry, find_result
from agentguard_server.viewer.run.error_propagation import ValueTrace
from agentguard_server.viewer.run.folded_text import FoldedText, FoldOptions, fold_text
from agentguard_server.viewer.run.guard_annotations import (
    TextRepair,
    describe_election,
    read_guard_messages,
    read_repairs,
)
from agentguard_server.viewer.run.highlights import Quote, QuoteIndex
from agentguard_server.viewer.run.step_kinds import StepKind, classify_step


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """Result of a call; ``error`` describes a recorded or a detected error and is empty without one."""

    text: FoldedText | None
    error: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCall:
    """Tool call with its result and its side effect."""

    name: str
    arguments: FoldedText | None
    result: CallResult | None
    effect: EffectEntry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """Step for display.

    Attributes:
        index: number of the step, from 0.
        anchor: id of its HTML element.
        branch_id: id of the branch on which it was recorded.
        kind: kind of the step, with letter and label.
        agent: name of the agent.
        guard_messages: messages of the guard before the step.
        repairs: repairs of the step by the guard.
        election: description of the vote among candidates.
        read_error: reason why the stored step cannot be decoded; empty if it can.
        seconds: duration, if known.
        tokens: prompt and completion tokens, if known.
        findings: findings of detectors in the step.
        root: whether the step is the diagnosed root cause; ``rank`` is its rank among the hypotheses, from 1.
        is_cause_certain: whether evidence or a recovery supports the root cause of a failed run.
        uses: traced values that the step uses.
        is_abandoned: whether the step is on an abandoned branch, which is grey on the page.
    """

    index: int
    anchor: str
    branch_id: str
    kind: StepKind
    agent: str
    guard_messages: tuple[str, ...]
    repairs: tuple[TextRepair, ...]
    election: str
    reasoning: FoldedText | None
    modules: tuple[tuple[str, FoldedText], ...]
    content: FoldedText | None
    calls: tuple[TurnCall, ...]
    results: tuple[CallResult, ...]
    read_error: str
    seconds: float | None
    tokens: int | None
    cost: float | None
    model: str
    findings: tuple[Finding, ...]
    root: bool
    is_cause_certain: bool
    rank: int | None
    uses: tuple[ValueTrace, ...]
    is_abandoned: bool

    @property
    def error(self) -> bool:
        """Return whether a result of the step is an error."""
        return any(call.result and call.result.error for call in self.calls) or any(
            result.error for result in self.results
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """Data from which turns are built.

    Attributes:
        quotes: all quotes of the page.
        findings: findings by step of the current branch.
        effects: effects by branch, step and position of the call.
        ranks: rank among the hypotheses, from 1, by branch and step.
        uses: traced values by branch and step that uses them.
        fold: folding of long texts.
        is_cause_certain: whether evidence or a recovery supports the root cause of a failed run.
        has_likely_cause: whether a step is likely; otherwise no turn is the root.
    """

    quotes: QuoteIndex
    findings: Mapping[int, tuple[Finding, ...]]
    effects: Mapping[tuple[str, int, int], EffectEntry]
    ranks: Mapping[tuple[str, int], int]
    uses: Mapping[tuple[str, int], tuple[ValueTrace, ...]]
    fold: FoldOptions
    is_cause_certain: bool = True
    has_likely_cause: bool = True


def build_turns(
    context: TurnContext, branch: BranchView, begin: int, end: int, *, prefix: str = ""
) -> tuple[TurnView, ...]:
    """Build the turns ``begin`` to ``end`` of a branch; ``prefix`` precedes the ids of their elements."""
    places = range(max(0, begin), min(end, len(branch.steps)))
    return tuple(_build_turn(context, branch, place, prefix) for place in places)


def _build_turn(context: TurnContext, branch: BranchView, place: int, prefix: str) -> TurnView:
    step, owner = branch.steps[place], branch.owner_ids[place]
    usage, rank = step.usage, context.ranks.get((owner, place))
    layout = _TextLayout(context.quotes.find_in_step(owner, place), context.fold)
    calls, unmatched_results = _build_calls(context, step, owner, place, layout)
    return TurnView(
        index=place,
        anchor=f"{prefix}step-{place}",
        branch_id=owner,
        kind=classify_step(step),
        agent=step.agent,
        guard_messages=read_guard_messages(step),
        repairs=read_repairs(step),
        election=describe_election(step),
        reasoning=layout("reasoning", step.reasoning),
        modules=_build_modules(step, context.fold),
        content=layout("content", step.content),
        calls=calls,
        results=unmatched_results,
        read_error=str(step.extra.get(DAMAGED_ROW_KEY, "")),
        seconds=compute_seconds(step),
        tokens=(usage.prompt_tokens or 0) + (usage.completion_tokens or 0) if usage else None,
        cost=usage.cost_usd if usage else None,
        model=step.model or "",
        findings=context.findings.get(place, ()) if not branch.id and not owner else (),
        root=rank == 1 and context.has_likely_cause,
        is_cause_certain=context.is_cause_certain,
        rank=rank,
        uses=context.uses.get((owner, place), ()),
        is_abandoned=bool(owner),
    )


@dataclass(frozen=True, slots=True)
class _TextLayout:
    """Layout of the texts of one step."""

    quotes: Mapping[str, list[Quote]]
    fold: FoldOptions

    def __call__(self, field: str, text: str, *, call: bool = False) -> FoldedText | None:
        field_quotes = self.quotes.get(field, ())
        return fold_text(field, text, field_quotes, self.fold, call=call) if text else None


def _build_calls(
    context: TurnContext, step: Step, owner: str, place: int, layout: _TextLayout
) -> tuple[tuple[TurnCall, ...], tuple[CallResult, ...]]:
    fields = dict(step.texts())
    used_places: set[int] = set()
    calls = []
    for i, call in enumerate(step.tool_calls):
        observation = find_result(step, i)
        observation_index = _find_observation(step.observations, observation, used_places)
        result = None
        if observation is not None and observation_index is not None:
            used_places.add(observation_index)
            result = _build_result(
                observation, layout(f"observations[{observation_index}]", observation.content)
            )
        arguments_text = fields.get(f"tool_calls[{i}]", "")
        calls.append(
            TurnCall(
                name=call.name,
                arguments=layout(f"tool_calls[{i}]", arguments_text, call=True)
                if arguments_text not in ("", "{}")
                else None,
                result=result,
                effect=context.effects.get((owner, place, i)),
            )
        )
    unmatched_results = tuple(
        _build_result(observation, layout(f"observations[{i}]", observation.content))
        for i, observation in enumerate(step.observations)
        if i not in used_places
    )
    return tuple(calls), unmatched_results


def _find_observation(
    observations: Sequence[Observation], wanted: Observation | None, used_places: set[int]
) -> int | None:
    return next((i for i, one in enumerate(observations) if one is wanted and i not in used_places), None)


def _build_result(observation: Observation, text: FoldedText | None) -> CallResult:
    return CallResult(text=text, error=describe_error(observation), tool=observation.tool or "")


def describe_error(observation: Observation) -> str:
    """Return the reason why a result counts as an error; empty if it does not."""
    if observation.is_error is not None:
        return "error" if observation.is_error else ""
    return "looks like an error" if classify_result(observation.content.lower()).is_error else ""


def _build_modules(step: Step, fold: FoldOptions) -> tuple[tuple[str, FoldedText], ...]:
    """Return the modules of a step whose text is not part of its content."""
    parts = ((name, text) for name, text in step.modules.items() if text and text not in step.content)
    return tuple((name, fold_text(f"modules.{name}", text, (), fold)) for name, text in parts)


def compute_seconds(step: Step) -> float | None:
    """Return the duration of a step in seconds; None if it is not recorded or negative."""
    if step.started_at is None or step.ended_at is None or step.ended_at < step.started_at:
        return None
    return step.ended_at - step.started_at
