"""Localizer ``schema`` with a judge: the prompt shows similar earlier failures after the run.

CORRECT (arXiv 2509.24088) retrieves schemata for the run and shows the model at most three, since more of
them distract. Here, an index retrieves them by similarity to the steps (`agentguard.schemata.index`). The
prompt shows them as data, fenced like the run. Without a judge, ``schema`` is
`agentguard.localize.schema_similarity.SchemaLocalizer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion, Judge
from agentguard.localize.agent_roles import find_agent_steps
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, pop_judge
from agentguard.localize.schema_similarity import DISTILL_HINT, SchemaLocalizer
from agentguard.trajectory.model import Record, Trajectory

if TYPE_CHECKING:
    from agentguard.schemata.model import ErrorSchema, Match

_MAX_SCHEMATA: Final = 3
_JUDGE_OPTIONS: Final = ("judge", "base_url", "replicas")


def build_schema_localizer(**options: Any) -> SchemaLocalizer | SchemaPromptedLocalizer:
    """Build the localizer: with a judge if the options name one, else by similarity alone.

    Raises:
        ConfigError: an option is unknown or out of range.
        FormatError, StoreError: there are no schemata at that location, or they cannot be read.
    """
    if not any(options.get(name) is not None for name in _JUDGE_OPTIONS):
        return SchemaLocalizer(**options)
    given_failed = bool(options.pop("given_failed", False))
    judge = pop_judge("schema", options)
    return SchemaPromptedLocalizer(SchemaLocalizer(**options), judge, given_failed=given_failed)


class SchemaPromptedLocalizer(LlmLocalizer):
    """Localizer that shows the judge schemata of earlier failures.

    Args:
        finder: localizer with the schemata.
        judge: the judge.
        given_failed: assume that every run failed, without a question.
    """

    def __init__(self, finder: SchemaLocalizer, judge: Judge, *, given_failed: bool = False) -> None:
        super().__init__("schema", self._query_root_cause, judge, given_failed=given_failed)
        self.finder = finder

    def fit(self, records: Sequence[Record]) -> SchemaPromptedLocalizer:
        """Distil the failures among ``records``, without a call to the judge."""
        from agentguard.schemata.signal_trainer import train_signals

        finder = self.finder.with_signals(train_signals(records, k=self.finder.k), self.finder.embedded)
        return SchemaPromptedLocalizer(finder, self.judge, given_failed=self.given_failed)

    def without_group(self, group: str) -> SchemaPromptedLocalizer:
        """Return a copy that ignores schemata of one question."""
        return SchemaPromptedLocalizer(
            self.finder.without_group(group), self.judge, given_failed=self.given_failed
        )

    def _query_root_cause(
        self, session: QuerySession, run: Trajectory, findings: Sequence[Finding]
    ) -> StepRanking:
        steps = find_agent_steps(run) or tuple(step.index for step in run.steps)
        nearest = self._find_nearest_schemata(run, findings)
        schema_ids = tuple(dict.fromkeys(match.schema.id for match in nearest.values()))[:_MAX_SCHEMATA]
        schemata = {match.schema.id: match.schema for match in nearest.values()}
        probabilities = (
            session.ask_choice(run, build_question(steps, [schemata[id] for id in schema_ids])) or {}
        )
        details = {
            step: _build_schema_details(match.schema)
            for step, match in nearest.items()
            if match.schema.id in schema_ids
        }
        missing_note = f"no schema resembles this run; {DISTILL_HINT}"
        note = f"schemata in the prompt: {', '.join(schema_ids)}" if schema_ids else missing_note
        return StepRanking(
            probabilities={int(step): p for step, p in probabilities.items()}, details=details, notes=(note,)
        )

    def _find_nearest_schemata(self, run: Trajectory, findings: Sequence[Finding]) -> dict[int, Match]:
        """Return the nearest schema of each step that has one, the most similar step first."""
        if not self.finder.schema_count:
            return {}
        from agentguard.judge.embedded.features.table import build_step_table

        similarity = self.finder.compute_similarity(run, findings)
        best = {
            step: matches[0]
            for step, matches in zip(build_step_table(run).steps, similarity.matches, strict=True)
            if matches and matches[0].similarity > 0
        }
        order = sorted(best, key=lambda step: (-best[step].similarity, step))
        return {step: best[step] for step in order}


def build_question(steps: Sequence[int], schemata: Sequence[ErrorSchema]) -> ChoiceQuestion:
    """Build the root-cause question, with earlier failures as context."""
    text = "The task failed. Which step made the first mistake that decided it?"
    if schemata:
        text += (
            " What earlier failures looked like is told among the notes; this run may resemble one of them "
            "or none."
        )
    options = tuple(str(step) for step in steps)
    return ChoiceQuestion(
        id="root_cause_schemata",
        text=text,
        options=options,
        context=tuple(f"an earlier failure: {schema.to_prompt_text()}" for schema in schemata),
    )


def _build_schema_details(schema: ErrorSchema) -> Mapping[str, Any]:
    return {
        "codes": schema.codes,
        "module": schema.module,
        "correction": schema.correction,
        "reason": f"it looks like an earlier failure (schema {schema.id})",
        "schemata": (schema.id,),
    }
