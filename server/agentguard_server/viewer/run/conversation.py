"""Steps as turns of a conversation: who, what was said, which tools were called and what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.detect.error_patterns import match_error
from agentguard.trajectory.model import Observation, Source, Step
from agentguard_server.viewer.data.run_data import DAMAGED_ROW_KEY
from agentguard_server.viewer.run.branches import BranchView
from agentguard_server.viewer.run.effect_ledger import EffectEntry, find_result
from agentguard_server.viewer.run.error_propagation import ValueTrace
from agentguard_server.viewer.run.guard_annotations import (
    TextRepair,
    describe_election,
    read_guard_messages,
    read_repairs,
)
from agentguard_server.viewer.run.highlights import Quote, QuoteIndex
from agentguard_server.viewer.run.step_kinds import StepKind, classify_step
from agentguard_server.viewer.run.text_view import FoldOptions, TextView, build_text_view


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a call returned; ``error`` says how it is known to be one: recorded, or by its looks."""

    text: TextView | None
    error: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCall:
    """A tool call, its result under it, and what became of its effect."""

    name: str
    arguments: TextView | None
    result: CallResult | None
    effect: EffectEntry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One step as the page shows it.

    Attributes:
        index: its number, from 0.
        anchor: id of its element.
        line: id of the line it was recorded on.
        look: kind, letter and words for who speaks.
        agent: name of the speaker.
        told: what the guard told the agent before it.
        repaired: what it repaired in it.
        elected: how it was chosen among candidates.
        damaged: why the stored step could not be read; empty where it could.
        seconds: how long it took, if known.
        tokens: prompt and completion, if known.
        findings: what detectors saw in it.
        root: it is held to be the root cause; ``rank`` is its rank among the hypotheses, from 1.
        sure: the run is held to have failed: what is first among the suspects is the root cause.
        uses: traced values that it uses.
        left: the line was left: it is shown in grey.
    """

    index: int
    anchor: str
    branch_id: str
    kind: StepKind
    agent: str
    guard_messages: tuple[str, ...]
    repairs: tuple[TextRepair, ...]
    election: str
    reasoning: TextView | None
    modules: tuple[tuple[str, TextView], ...]
    content: TextView | None
    calls: tuple[TurnCall, ...]
    results: tuple[CallResult, ...]
    read_error: str
    seconds: float | None
    tokens: int | None
    cost: float | None
    model: str
    findings: tuple[Finding, ...]
    root: bool
    sure: bool
    rank: int | None
    uses: tuple[ValueTrace, ...]
    is_abandoned: bool

    @property
    def error(self) -> bool:
        """Whether something that came back in it is an error."""
        return any(call.result and call.result.error for call in self.calls) or any(
            result.error for result in self.results
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """What turns are read with.

    Attributes:
        quotes: all quotes of the page.
        findings: by step, of the live line.
        effects: by line, step and place of the call.
        ranks: step to its rank among the hypotheses, from 1, by line.
        uses: step to the traced values it uses, by line.
        fold: how much of long texts is in the page.
        sure: the run is held to have failed.
    """

    quotes: QuoteIndex
    findings: Mapping[int, tuple[Finding, ...]]
    effects: Mapping[tuple[str, int, int], EffectEntry]
    ranks: Mapping[tuple[str, int], int]
    uses: Mapping[tuple[str, int], tuple[ValueTrace, ...]]
    fold: FoldOptions
    sure: bool = True


def build_turns(
    context: TurnContext, branch: BranchView, begin: int, end: int, *, prefix: str = ""
) -> tuple[TurnView, ...]:
    """The turns ``begin`` to ``end`` of a line; ``prefix`` goes before the ids of their elements."""
    shown = range(max(0, begin), min(end, len(branch.steps)))
    return tuple(_build_turn(context, branch, place, prefix) for place in shown)


def _build_turn(context: TurnContext, branch: BranchView, place: int, prefix: str) -> TurnView:
    step, owner = branch.steps[place], branch.owner_ids[place]
    usage, rank = step.usage, context.ranks.get((owner, place))
    laid = _TextLayout(context.quotes.find_in_step(owner, place), context.fold)
    calls, rest = _build_calls(context, step, owner, place, laid)
    return TurnView(
        index=place,
        anchor=f"{prefix}step-{place}",
        branch_id=owner,
        kind=classify_step(step),
        agent=step.agent,
        guard_messages=read_guard_messages(step),
        repairs=read_repairs(step),
        election=describe_election(step),
        reasoning=laid("reasoning", step.reasoning),
        modules=_build_modules(step, context.fold),
        content=laid("content", step.content),
        calls=calls,
        results=rest,
        read_error=str(step.extra.get(DAMAGED_ROW_KEY, "")),
        seconds=compute_seconds(step),
        tokens=(usage.prompt_tokens or 0) + (usage.completion_tokens or 0) if usage else None,
        cost=usage.cost_usd if usage else None,
        model=step.model or "",
        findings=context.findings.get(place, ()) if not branch.id and not owner else (),
        root=rank == 1,
        sure=context.sure,
        rank=rank,
        uses=context.uses.get((owner, place), ()),
        is_abandoned=bool(owner),
    )


@dataclass(frozen=True, slots=True)
class _TextLayout:
    """Lays out the texts of one step."""

    quotes: Mapping[str, list[Quote]]
    fold: FoldOptions

    def __call__(self, field: str, text: str, *, call: bool = False) -> TextView | None:
        given = self.quotes.get(field, ())
        return build_text_view(field, text, given, self.fold, call=call) if text else None


def _build_calls(
    context: TurnContext, step: Step, owner: str, place: int, layout: _TextLayout
) -> tuple[tuple[TurnCall, ...], tuple[CallResult, ...]]:
    fields = dict(step.texts())
    taken: set[int] = set()
    calls = []
    for i, call in enumerate(step.tool_calls):
        seen = find_result(step, i)
        at = _find_observation(step.observations, seen, taken)
        result = None
        if seen is not None and at is not None:
            taken.add(at)
            result = _build_result(seen, layout(f"observations[{at}]", seen.content))
        given = fields.get(f"tool_calls[{i}]", "")
        calls.append(
            TurnCall(
                name=call.name,
                arguments=layout(f"tool_calls[{i}]", given, call=True) if given not in ("", "{}") else None,
                result=result,
                effect=context.effects.get((owner, place, i)),
            )
        )
    rest = tuple(
        _build_result(seen, layout(f"observations[{i}]", seen.content))
        for i, seen in enumerate(step.observations)
        if i not in taken
    )
    return tuple(calls), rest


def _find_observation(all: Sequence[Observation], seen: Observation | None, taken: set[int]) -> int | None:
    return next((i for i, one in enumerate(all) if one is seen and i not in taken), None)


def _build_result(seen: Observation, text: TextView | None) -> CallResult:
    return CallResult(text=text, error=describe_error(seen), tool=seen.tool or "")


def describe_error(observation: Observation) -> str:
    """How it is known that a result is an error; empty where it is none."""
    if observation.is_error is not None:
        return "error" if observation.is_error else ""
    return "looks like an error" if match_error(observation.content.lower()) is not None else ""


def _build_modules(step: Step, fold: FoldOptions) -> tuple[tuple[str, TextView], ...]:
    """The parts of the turn, where they are not what its content says anyway."""
    parts = ((name, text) for name, text in step.modules.items() if text and text not in step.content)
    return tuple((name, build_text_view(f"modules.{name}", text, (), fold)) for name, text in parts)


def compute_seconds(step: Step) -> float | None:
    """How long a step took; None if it was not recorded, or ends before it begins."""
    if step.started_at is None or step.ended_at is None or step.ended_at < step.started_at:
        return None
    return step.ended_at - step.started_at


def count_agent_turns(steps: Sequence[Step]) -> int:
    """How often the speaker changed to an agent: consecutive steps of one agent are one turn."""
    count, last = 0, None
    for step in steps:
        speaker = (step.source, step.agent)
        count += step.source is Source.AGENT and speaker != last
        last = speaker
    return count
