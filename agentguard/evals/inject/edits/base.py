"""Interface and registry of edits. An edit injects one kind of error into a recorded run.

The method is that of CORRECT-Error (arXiv 2509.24088), but needs no language model. An edit derives the
consequences of the error from the run itself or leaves them out. It invents only a short error message or a
closing line.
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
    """Treatment of the steps after the error.

    ``propagated``: the steps are kept, and values derived from the changed value are changed too.
    ``kept``: the steps are unchanged. ``truncated``: the run ends earlier, since its continuation is unknown.
    """

    PROPAGATED = "propagated"
    TRUNCATED = "truncated"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field that differs from the source run.

    Attributes:
        step: index in the rewritten run; for a removed step, its index in the source run.
        field: a name as in ``Step.texts`` (``content``, ``tool_calls[0].arguments``, ``observations[0]`` …);
            ``step`` for an inserted or removed step, ``steps`` for all steps from there on.
        before, after: the part that differs, clipped; None if the field is absent.
    """

    step: int
    field: str
    before: str | None
    after: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the change as JSON data."""
        return {"step": self.step, "field": self.field, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenRun:
    """Steps of a run that contains one error.

    Attributes:
        steps: all steps of the rewritten run, numbered from 0.
        step: the first step that differs from the source run.
        cause: the root cause with agent, module, codes and a sentence. Its step is ``step``, or the next turn
            of the agent if the agent misjudges an error of the environment.
        changes: all differences.
        tail: treatment of the steps after the error.
    """

    steps: tuple[Step, ...]
    step: int
    cause: RootCause
    changes: tuple[FieldChange, ...]
    tail: TailHandling


class Edit(Protocol):
    """One kind of error.

    Attributes:
        name: the name in commands and configuration, e.g. ``"parameter_error"``.
        summary: one line for the list of edits.
        codes: qualified taxonomy codes of the error, the most specific first.
        module: the part of the agent that errs.
    """

    name: str
    summary: str
    codes: tuple[str, ...]
    module: str

    def applies(self, run: Trajectory, step: int) -> bool:
        """Return whether the edit can inject this error into that step without invented consequences."""
        ...

    def apply(self, run: Trajectory, step: int, rng: random.Random) -> RewrittenRun:
        """Inject the error into the step. The same run, step and state of ``rng`` give the same result.

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
    """Return the registry of edits: built-in and installed ones (group ``agentguard.edits``)."""
    return _REGISTRY


class BaseEdit(ABC):
    """Base class of edits. `make` returns None if the edit does not apply, for every state of ``rng``."""

    name: str
    summary: str
    codes: tuple[str, ...]
    module: str

    def applies(self, run: Trajectory, step: int) -> bool:
        """Return whether the edit can inject this error into that step without invented consequences."""
        run_index = build_run_index(run)
        return run_index.is_agent(step) and self.make(run_index, step, random.Random(0)) is not None  # noqa: S311

    def apply(self, run: Trajectory, step: int, rng: random.Random) -> RewrittenRun:
        """Inject the error into the step. Raises InputError if the edit does not apply to that step."""
        run_index = build_run_index(run)
        rewritten = self.make(run_index, step, rng) if run_index.is_agent(step) else None
        if rewritten is None:
            raise InputError(
                f"the edit {self.name} does not apply to step {step}", hint="call applies() first"
            )
        return rewritten

    @abstractmethod
    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Return the rewritten run, or None if the edit does not apply to this turn of an agent."""

    def build_cause(self, agent: str, step: int, reason: str) -> RootCause:
        """Return the root cause for the annotation."""
        return RootCause(step=step, agent=agent, module=self.module, codes=self.codes, reason=reason)
