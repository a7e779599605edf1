"""A small synthetic annotated set, and methods with known answers."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Hypothesis, Localizer
from agentguard.trajectory.model import Annotation, Record, RootCause, Source, Step, Trajectory
from agentguard.verdict import Verdict


def record(
    id: str,
    *,
    step: int | None = 1,
    steps: int = 4,
    group: str = "",
    failed: bool | None = True,
    module: str | None = None,
    answer: str | None = None,
) -> Record:
    """Return a run of two agents in turns; ``step`` is its root cause."""
    made = tuple(
        Step(index=i, source=Source.AGENT, agent=f"agent{i % 2}", content=f"{id} does {i}")
        for i in range(steps)
    )
    cause = None if step is None else RootCause(step=step, agent=f"agent{step % 2}", module=module)
    return Record(
        trajectory=Trajectory(id=id, format="test", task=f"task {group or id}", steps=made),
        annotation=Annotation(failed=failed, root_cause=cause, group=group or f"task {id}", answer=answer),
    )


def records(n: int = 12) -> list[Record]:
    """Return ``n`` runs, two per question; the root cause is step 1 in two of three, else step 2."""
    return [record(f"r{i}", step=2 if i % 3 == 0 else 1, group=f"Question {i // 2}?") for i in range(n)]


class Says:
    """Localizer that always returns the given steps."""

    def __init__(self, *steps: int, probability: float = 0.9, name: str = "says") -> None:
        self.name, self.steps, self.probability = name, steps, probability

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        found = tuple(
            Hypothesis(step=s, agent=trajectory.steps[s].agent, probability=1 / (place + 2))
            for place, s in enumerate(self.steps)
        )
        verdict = Verdict.FAILED if found else Verdict.NO_FAILURE_FOUND
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=self.name,
            verdict=verdict,
            probability=self.probability,
            hypotheses=found,
        )

    def __repr__(self) -> str:
        return f"Says{self.steps}"


class Remembers:
    """Localizer that records its training runs and groups, and returns the most frequent training step."""

    name = "remembers"

    def __init__(self, die_after: int | None = None) -> None:
        self.trained: list[tuple[Record, ...]] = []
        self.asked: list[str] = []
        self.die_after = die_after

    def fit(self, records: Sequence[Record]) -> Localizer:
        self.trained.append(tuple(records))
        return _Remembering(self, frozenset(r.annotation.group for r in records), _commonest(records))

    def __repr__(self) -> str:
        return "Remembers()"


class _Remembering:
    name = "remembers"

    def __init__(self, parent: Remembers, groups: frozenset[str | None], step: int) -> None:
        self.parent, self.groups, self.step = parent, groups, step

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        if self.parent.die_after is not None and len(self.parent.asked) >= self.parent.die_after:
            raise KeyboardInterrupt
        self.parent.asked.append(trajectory.id)
        return Says(self.step).locate(trajectory, findings)


def _commonest(records: Sequence[Record]) -> int:
    steps = [r.annotation.root_cause.step for r in records if r.annotation.root_cause]
    return max(sorted(set(steps)), key=steps.count) if steps else 0  # type: ignore[type-var, return-value]
