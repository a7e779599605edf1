"""Number of labels of each agent, and the minimum for a specialist of the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentguard.judge.embedded.log_kind import build_structure_key
from agentguard.trajectory.model import Record

MIN_ROOT_CAUSES: Final = 20
"""Minimum of runs of an agent with a root-cause step, for a ranking of steps."""
MIN_OUTCOMES: Final = 20
"""Minimum of runs of an agent with an outcome, for an outcome model."""
MIN_RUNS_PER_OUTCOME: Final = 5
"""Minimum of failed runs, and of passed runs, among these."""
MINIMUM_LABELS: Final = (
    f"{MIN_ROOT_CAUSES} root causes train its ranking of steps; {MIN_OUTCOMES} runs with an outcome, at "
    f"least {MIN_RUNS_PER_OUTCOME} of them failed and {MIN_RUNS_PER_OUTCOME} passed, train its outcome model"
)
"""Statement of the minimum for an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """Numbers of labelled runs of one agent.

    Attributes:
        agent: its name in the training data.
        structure: structure of its runs.
        failed, passed: numbers of runs by outcome.
        root_causes: number of runs with a root-cause step.
    """

    agent: str
    structure: str
    failed: int
    passed: int
    root_causes: int

    @property
    def trains_ranking(self) -> bool:
        """True if the root causes suffice for a ranking of steps."""
        return self.root_causes >= MIN_ROOT_CAUSES

    @property
    def trains_outcomes(self) -> bool:
        """True if the outcomes suffice for an outcome model."""
        return (
            self.failed + self.passed >= MIN_OUTCOMES
            and min(self.failed, self.passed) >= MIN_RUNS_PER_OUTCOME
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of a model card."""
        return {
            "agent": self.agent,
            "structure": self.structure,
            "failed": self.failed,
            "passed": self.passed,
            "root_causes": self.root_causes,
            "ranks_steps": self.trains_ranking,
            "predicts_outcomes": self.trains_outcomes,
        }


def count_labels(records: Sequence[Record], systems: Sequence[str]) -> tuple[LabelCounts, ...]:
    """Count the labels by agent and structure of the runs, most labels first.

    Args:
        records: the runs; those without a label and without a step are not counted.
        systems: name of the agent of each record.
    """
    members: dict[tuple[str, str], list[Record]] = {}
    for record, system in zip(records, systems, strict=True):
        if record.trajectory.steps and is_labelled(record):
            members.setdefault((system, build_structure_key(record.trajectory)), []).append(record)
    counts = [
        LabelCounts(
            agent=agent,
            structure=structure,
            failed=sum(record.annotation.failed is True for record in group),
            passed=sum(record.annotation.failed is False for record in group),
            root_causes=sum(get_root_cause_step(record) is not None for record in group),
        )
        for (agent, structure), group in members.items()
    ]
    return tuple(sorted(counts, key=lambda one: (-one.failed - one.passed - one.root_causes, one.agent)))


def is_labelled(record: Record) -> bool:
    """Return whether a run has a root-cause step or an outcome."""
    return get_root_cause_step(record) is not None or record.annotation.failed is not None


def get_root_cause_step(record: Record) -> int | None:
    """Return the step of the annotated root cause; None if the record has no root cause."""
    cause = record.annotation.root_cause
    return None if cause is None else cause.step
