"""What the built-in edits share: one method makes the rewritten run or says that it cannot."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from agentguard.errors import InputError
from agentguard.evals.inject.edits.base import Rewritten
from agentguard.evals.inject.edits.reading import Reading, reading
from agentguard.trajectory.model import RootCause, Trajectory


class Maker(ABC):
    """An edit whose `make` returns None where it does not apply, whatever the state of ``rng``."""

    name: str
    summary: str
    codes: tuple[str, ...]
    module: str

    def applies(self, run: Trajectory, step: int) -> bool:
        """Whether this error can honestly be put into that step."""
        read = reading(run)
        return read.is_agent(step) and self.make(read, step, random.Random(0)) is not None  # noqa: S311

    def apply(self, run: Trajectory, step: int, rng: random.Random) -> Rewritten:
        """Put the error in. Raises InputError if it does not apply to that step."""
        read = reading(run)
        made = self.make(read, step, rng) if read.is_agent(step) else None
        if made is None:
            raise InputError(
                f"the edit {self.name} does not apply to step {step}", hint="ask applies() first"
            )
        return made

    @abstractmethod
    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """The rewritten run, None where the edit does not apply to this turn of an agent."""

    def cause(self, agent: str, step: int, reason: str) -> RootCause:
        """The root cause as the annotation will have it."""
        return RootCause(step=step, agent=agent, module=self.module, codes=self.codes, reason=reason)
