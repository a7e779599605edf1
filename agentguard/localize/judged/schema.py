"""``schema`` with a judge: earlier failures that resemble the run are shown to it beside the run.

As CORRECT has it (arXiv 2509.24088): schemata are retrieved for the run and shown to the model, at most
three, as more distract. They are found by likeness to the steps (`agentguard.schemata.retrieve`), and shown
as data, fenced like the run. Without a judge ``schema`` is `agentguard.localize.schema.SchemaLocalizer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import Choice, Judge
from agentguard.localize.judged.asking import Asking
from agentguard.localize.judged.method import Judged, Ranked
from agentguard.localize.judged.named import judge_of
from agentguard.localize.roles import agent_steps
from agentguard.localize.schema import HOW, SchemaLocalizer
from agentguard.trajectory.model import Record, Trajectory

if TYPE_CHECKING:
    from agentguard.schemata.model import Match, Schema

_MOST: Final = 3
_LONGEST: Final = 600
_ASKS: Final = ("judge", "base_url", "replicas")


def schema(**options: Any) -> SchemaLocalizer | SchemaJudged:
    """Make the localizer: with a judge where options name one, else by likeness alone.

    Raises:
        ConfigError: an option does not exist or is out of its range.
        FormatError, StoreError: there are no schemata at that place, or they cannot be read.
    """
    if not any(options.get(name) is not None for name in _ASKS):
        return SchemaLocalizer(**options)
    given_failed = bool(options.pop("given_failed", False))
    judge = judge_of("schema", options)
    return SchemaJudged(SchemaLocalizer(**options), judge, given_failed=given_failed)


class SchemaJudged(Judged):
    """A judge that is shown what earlier failures looked like.

    Args:
        finder: has the schemata.
        judge: who is asked.
        given_failed: take it as known that every run failed, and do not ask.
    """

    def __init__(self, finder: SchemaLocalizer, judge: Judge, *, given_failed: bool = False) -> None:
        super().__init__("schema", self._ask, judge, given_failed=given_failed)
        self.finder = finder

    def fit(self, records: Sequence[Record]) -> SchemaJudged:
        """Distil the failures among ``records``, and nothing else; the judge is not asked."""
        from agentguard.schemata.learn import learnt

        found = self.finder.of(learnt(records, k=self.finder.k), self.finder.embedded)
        return SchemaJudged(found, self.judge, given_failed=self.given_failed)

    def leaving_out(self, group: str) -> SchemaJudged:
        """A copy to which schemata of one question are unknown."""
        return SchemaJudged(self.finder.leaving_out(group), self.judge, given_failed=self.given_failed)

    def _ask(self, asking: Asking, run: Trajectory, findings: Sequence[Finding]) -> Ranked:
        steps = agent_steps(run) or tuple(step.index for step in run.steps)
        near = self._near(run, findings)
        shown = tuple(dict.fromkeys(match.schema.id for match in near.values()))[:_MOST]
        held = {match.schema.id: match.schema for match in near.values()}
        found = asking.choose(run, question(steps, [held[id] for id in shown])) or {}
        told = {step: _told(match.schema) for step, match in near.items() if match.schema.id in shown}
        missing = f"no schema resembles this run; {HOW}"
        note = f"schemata that were shown: {', '.join(shown)}" if shown else missing
        return Ranked(steps={int(step): p for step, p in found.items()}, told=told, notes=(note,))

    def _near(self, run: Trajectory, findings: Sequence[Finding]) -> dict[int, Match]:
        """The nearest schema of each step that has one, the likest step first."""
        if not self.finder.known:
            return {}
        from agentguard.judge.features.table import step_table

        said = self.finder.said(run, findings)
        best = {
            step: matches[0]
            for step, matches in zip(step_table(run).steps, said.matches, strict=True)
            if matches and matches[0].likeness > 0
        }
        order = sorted(best, key=lambda step: (-best[step].likeness, step))
        return {step: best[step] for step in order}


def question(steps: Sequence[int], schemata: Sequence[Schema]) -> Choice:
    """Which step decided the failure, with what earlier failures looked like beside the run."""
    text = "The task failed. Which step made the first mistake that decided it?"
    if schemata:
        text += (
            " What earlier failures looked like is told among the notes; this run may resemble one of them "
            "or none."
        )
    options = tuple(str(step) for step in steps)
    return Choice(id="root_cause_schemata", text=text, options=options, shown=tuple(map(_line, schemata)))


def _line(schema: Schema) -> str:
    parts = [" ".join(schema.signature), " ".join(schema.context)]
    said = " Where: ".join(part for part in parts if part)
    if schema.heuristics:
        said += " How to tell: " + " ".join(schema.heuristics)
    return f"an earlier failure: {' '.join(said.split())}"[:_LONGEST]


def _told(schema: Schema) -> Mapping[str, Any]:
    return {
        "codes": schema.codes,
        "module": schema.module,
        "correction": schema.correction,
        "reason": f"it looks like an earlier failure (schema {schema.id})",
        "schemata": (schema.id,),
    }
