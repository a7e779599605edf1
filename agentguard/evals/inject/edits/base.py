"""What an edit is: one kind of error that can be put into a recorded run, and the registry of them.

After CORRECT-Error (arXiv 2509.24088), without a language model: what follows from the error is either
derived from the run itself or left out, never made up beyond a short error message or a closing line.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from agentguard.errors import InputError
from agentguard.evals.inject.edits.run_index import RunIndex, build_run_index
from agentguard.plugins import Registry
from agentguard.trajectory.model import RootCause, Step, Trajectory


class TailHandling(StrEnum):
    """What became of the steps after the error.

    ``propagated``: they stand, with what derives from the changed value changed too. ``kept``: they stand as
    they were. ``truncated``: the run ends earlier, as nobody can say what would have happened.
    """

    PROPAGATED = "propagated"
    TRUNCATED = "truncated"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field that differs from the source run.

    Attributes:
        step: index in the rewritten run; of a step that was removed, the index it had in the source run.
        field: as ``Step.texts`` names it (``content``, ``tool_calls[0].arguments``, ``observations[0]`` …);
            ``step`` for one that was inserted or removed, ``steps`` for all from there on.
        before, after: the part that differs, clipped; None where there is nothing.
    """

    step: int
    field: str
    before: str | None
    after: str | None

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {"step": self.step, "field": self.field, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenRun:
    """A run's steps with one error in them.

    Attributes:
        steps: all steps of the rewritten run, numbered from 0.
        step: the first step that differs from the source run; every step before it is the source's own.
        cause: where the error lies (the same step, or the agent's next one if it is in how the agent took an
            environment's error), with agent, module, codes and a sentence.
        changes: everything that differs.
        tail: what became of the steps after it.
    """

    steps: tuple[Step, ...]
    step: int
    cause: RootCause
    changes: tuple[FieldChange, ...]
    tail: TailHandling


class Edit(Protocol):
    """One kind of error.

    Attributes:
        name: as the user writes it, e.g. ``"parameter_error"``.
        summary: one line for the list of edits.
        codes: qualified taxonomy codes of the error, the most specific first.
        module: the part of the agent that errs.
    """

    name: str
    summary: str
    codes: tuple[str, ...]
    module: str

    def applies(self, run: Trajectory, step: int) -> bool:
        """Whether this error can honestly be put into that step."""
        ...

    def apply(self, run: Trajectory, step: int, rng: random.Random) -> RewrittenRun:
        """Put the error in. The same run, step and state of ``rng`` give the same result.

        Raises:
            InputError: the edit does not apply to that step.
        """
        ...


_REGISTRY: Registry[Edit] = Registry(
    "edit",
    group="agentguard.edits",
    builtin={
        "parameter_error": "agentguard.evals.inject.edits.arguments:PARAMETER_ERROR",
        "misaligned_action": "agentguard.evals.inject.edits.arguments:MISALIGNED_ACTION",
        "invalid_action": "agentguard.evals.inject.edits.calls:INVALID_ACTION",
        "format_error": "agentguard.evals.inject.edits.calls:FORMAT_ERROR",
        "tool_error_ignored": "agentguard.evals.inject.edits.calls:TOOL_ERROR_IGNORED",
        "misread_observation": "agentguard.evals.inject.edits.claims:MISREAD_OBSERVATION",
        "hallucinated_memory": "agentguard.evals.inject.edits.claims:HALLUCINATED_MEMORY",
        "dropped_constraint": "agentguard.evals.inject.edits.control_flow:DROPPED_CONSTRAINT",
        "progress_misjudge": "agentguard.evals.inject.edits.control_flow:PROGRESS_MISJUDGE",
        "repeat_loop": "agentguard.evals.inject.edits.control_flow:REPEAT_LOOP",
        "step_limit": "agentguard.evals.inject.edits.control_flow:STEP_LIMIT",
    },
)


def get_edit_registry() -> Registry[Edit]:
    """The registry of edits: those in this package and installed ones (group ``agentguard.edits``)."""
    return _REGISTRY


class BaseEdit(ABC):
    """An edit whose `make` returns None where it does not apply, whatever the state of ``rng``."""

    name: str
    summary: str
    codes: tuple[str, ...]
    module: str

    def applies(self, run: Trajectory, step: int) -> bool:
        """Whether this error can honestly be put into that step."""
        read = build_run_index(run)
        return read.is_agent(step) and self.make(read, step, random.Random(0)) is not None  # noqa: S311

    def apply(self, run: Trajectory, step: int, rng: random.Random) -> RewrittenRun:
        """Put the error in. Raises InputError if it does not apply to that step."""
        read = build_run_index(run)
        made = self.make(read, step, rng) if read.is_agent(step) else None
        if made is None:
            raise InputError(
                f"the edit {self.name} does not apply to step {step}", hint="ask applies() first"
            )
        return made

    @abstractmethod
    def make(self, read: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """The rewritten run, None where the edit does not apply to this turn of an agent."""

    def build_cause(self, agent: str, step: int, reason: str) -> RootCause:
        """The root cause as the annotation will have it."""
        return RootCause(step=step, agent=agent, module=self.module, codes=self.codes, reason=reason)
