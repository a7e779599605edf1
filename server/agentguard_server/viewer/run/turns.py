"""Steps as turns of a conversation: who, what was said, which tools were called and what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.detect.trouble import trouble
from agentguard.trajectory.model import Observation, Source, Step
from agentguard_server.viewer.bundle import DAMAGED_STEP
from agentguard_server.viewer.run.guarded import Repaired, election, repairs, told_before
from agentguard_server.viewer.run.kinds import Look, look_of
from agentguard_server.viewer.run.ledger import Entry, result_of
from agentguard_server.viewer.run.lines import Line
from agentguard_server.viewer.run.marks import Quote, Quotes
from agentguard_server.viewer.run.passage import Fold, Passage, passage
from agentguard_server.viewer.run.spread import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a call returned; ``error`` says how it is known to be one: recorded, or by its looks."""

    passage: Passage | None
    error: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call, its result under it, and what became of its effect."""

    name: str
    arguments: Passage | None
    result: Result | None
    effect: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
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
    line: str
    look: Look
    agent: str
    told: tuple[str, ...]
    repaired: tuple[Repaired, ...]
    elected: str
    reasoning: Passage | None
    modules: tuple[tuple[str, Passage], ...]
    content: Passage | None
    calls: tuple[Call, ...]
    results: tuple[Result, ...]
    damaged: str
    seconds: float | None
    tokens: int | None
    cost: float | None
    model: str
    findings: tuple[Finding, ...]
    root: bool
    sure: bool
    rank: int | None
    uses: tuple[Trace, ...]
    left: bool

    @property
    def error(self) -> bool:
        """Whether something that came back in it is an error."""
        return any(call.result and call.result.error for call in self.calls) or any(
            result.error for result in self.results
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
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

    quotes: Quotes
    findings: Mapping[int, tuple[Finding, ...]]
    effects: Mapping[tuple[str, int, int], Entry]
    ranks: Mapping[tuple[str, int], int]
    uses: Mapping[tuple[str, int], tuple[Trace, ...]]
    fold: Fold
    sure: bool = True


def turns(reading: Reading, line: Line, begin: int, end: int, *, prefix: str = "") -> tuple[Turn, ...]:
    """The turns ``begin`` to ``end`` of a line; ``prefix`` goes before the ids of their elements."""
    shown = range(max(0, begin), min(end, len(line.steps)))
    return tuple(_turn(reading, line, place, prefix) for place in shown)


def _turn(reading: Reading, line: Line, place: int, prefix: str) -> Turn:
    step, owner = line.steps[place], line.owners[place]
    usage, rank = step.usage, reading.ranks.get((owner, place))
    laid = _Laid(reading.quotes.of(owner, place), reading.fold)
    calls, rest = _calls(reading, step, owner, place, laid)
    return Turn(
        index=place,
        anchor=f"{prefix}step-{place}",
        line=owner,
        look=look_of(step),
        agent=step.agent,
        told=told_before(step),
        repaired=repairs(step),
        elected=election(step),
        reasoning=laid("reasoning", step.reasoning),
        modules=_modules(step, reading.fold),
        content=laid("content", step.content),
        calls=calls,
        results=rest,
        damaged=str(step.extra.get(DAMAGED_STEP, "")),
        seconds=seconds_of(step),
        tokens=(usage.prompt_tokens or 0) + (usage.completion_tokens or 0) if usage else None,
        cost=usage.cost_usd if usage else None,
        model=step.model or "",
        findings=reading.findings.get(place, ()) if not line.id and not owner else (),
        root=rank == 1,
        sure=reading.sure,
        rank=rank,
        uses=reading.uses.get((owner, place), ()),
        left=bool(owner),
    )


@dataclass(frozen=True, slots=True)
class _Laid:
    """Lays out the texts of one step."""

    quotes: Mapping[str, list[Quote]]
    fold: Fold

    def __call__(self, field: str, text: str, *, call: bool = False) -> Passage | None:
        given = self.quotes.get(field, ())
        return passage(field, text, given, self.fold, call=call) if text else None


def _calls(
    reading: Reading, step: Step, owner: str, place: int, laid: _Laid
) -> tuple[tuple[Call, ...], tuple[Result, ...]]:
    fields = dict(step.texts())
    taken: set[int] = set()
    calls = []
    for i, call in enumerate(step.tool_calls):
        seen = result_of(step, i)
        at = _position(step.observations, seen, taken)
        result = None
        if seen is not None and at is not None:
            taken.add(at)
            result = _result(seen, laid(f"observations[{at}]", seen.content))
        given = fields.get(f"tool_calls[{i}]", "")
        calls.append(
            Call(
                name=call.name,
                arguments=laid(f"tool_calls[{i}]", given, call=True) if given not in ("", "{}") else None,
                result=result,
                effect=reading.effects.get((owner, place, i)),
            )
        )
    rest = tuple(
        _result(seen, laid(f"observations[{i}]", seen.content))
        for i, seen in enumerate(step.observations)
        if i not in taken
    )
    return tuple(calls), rest


def _position(all: Sequence[Observation], seen: Observation | None, taken: set[int]) -> int | None:
    return next((i for i, one in enumerate(all) if one is seen and i not in taken), None)


def _result(seen: Observation, text: Passage | None) -> Result:
    return Result(passage=text, error=error_of(seen), tool=seen.tool or "")


def error_of(seen: Observation) -> str:
    """How it is known that a result is an error; empty where it is none."""
    if seen.is_error is not None:
        return "error" if seen.is_error else ""
    return "looks like an error" if trouble(seen.content.lower()) is not None else ""


def _modules(step: Step, fold: Fold) -> tuple[tuple[str, Passage], ...]:
    """The parts of the turn, where they are not what its content says anyway."""
    parts = ((name, text) for name, text in step.modules.items() if text and text not in step.content)
    return tuple((name, passage(f"modules.{name}", text, (), fold)) for name, text in parts)


def seconds_of(step: Step) -> float | None:
    """How long a step took; None if it was not recorded, or ends before it begins."""
    if step.started_at is None or step.ended_at is None or step.ended_at < step.started_at:
        return None
    return step.ended_at - step.started_at


def turns_of_agents(steps: Sequence[Step]) -> int:
    """How often the speaker changed to an agent: consecutive steps of one agent are one turn."""
    count, last = 0, None
    for step in steps:
        speaker = (step.source, step.agent)
        count += step.source is Source.AGENT and speaker != last
        last = speaker
    return count
