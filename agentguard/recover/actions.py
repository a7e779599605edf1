"""Actions of a recovery plan: a closed set, which an integration applies to a running agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentguard.recover.effect_store import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    """Send ``text`` to the agent at the next turn boundary."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Discard the uncommitted turn and request another from the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Roll the run back to ``to_step``: truncate the messages, or fork and restore the saved state."""

    to_step: int
    by: Literal["truncate", "fork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensate:
    """Undo the effects, the latest first."""

    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DisableTools:
    """Disable the tools for the rest of the run."""

    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart the run with ``note`` added to the task, so that the initial input differs."""

    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Replace a field of a step with a corrected text and continue.

    Attributes:
        step: index of the step, from 0.
        field: name of the field as in `Step.texts`. In a turn whose tools have not run: ``content``,
            ``tool_calls[i]`` (the arguments as JSON) or ``tool_calls[i].name``. In a committed step:
            ``observations[i]``.
        text: corrected text.
    """

    step: int
    field: str
    text: str

    @property
    def index(self) -> int:
        """Index ``i`` in the name of the field. Raises ValueError for ``content``."""
        return int(self.field.partition("[")[2].partition("]")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVariant:
    """Changes to the model request for one candidate; defaults keep the request of the proposed turn.

    Attributes:
        model: name of the model.
        instruction: text added after the other messages, for this candidate only.
        temperature: sampling temperature.
    """

    model: str = ""
    instruction: str = ""
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Request candidates of one turn, and accept one on which ``quorum`` candidates agree.

    Attributes:
        n: maximum number of candidates, including the proposed turn.
        quorum: number of candidates that must agree; with 1, the first acceptable candidate is accepted.
        models, instructions, temperatures: values of the further candidates. Each list is cycled; an empty
            list keeps the value of the proposed turn.
        staged: True to request only as many candidates at a time as may decide the vote.
        ignore: names of arguments in which candidates may differ.
    """

    n: int
    quorum: int
    models: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()
    staged: bool = True
    ignore: tuple[str, ...] = ()

    def build_variants(self) -> tuple[SampleVariant, ...]:
        """Return the variants of the ``n - 1`` candidates after the proposed turn."""
        return tuple(
            SampleVariant(
                model=self.models[i % len(self.models)] if self.models else "",
                instruction=self.instructions[i % len(self.instructions)] if self.instructions else "",
                temperature=self.temperatures[i % len(self.temperatures)] if self.temperatures else None,
            )
            for i in range(self.n - 1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalate:
    """Ask a person; the run waits for the answer."""

    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the run."""

    reason: str


RecoveryAction = (
    SendMessage | Reject | Rewind | Compensate | DisableTools | Restart | Repair | Sample | Escalate | Stop
)
