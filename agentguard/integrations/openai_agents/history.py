"""The live line of a run of the OpenAI Agents SDK: its steps, who spoke, and where they end in the view."""

from __future__ import annotations

from typing import Any

from agents import Agent

from agentguard.integrations.openai_agents.items import HistoryView
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Step


class RunLine:
    """Steps of a session, side by side with the view that the model gets.

    Args:
        session: of the run.

    Attributes:
        view: what the model gets.
        given: steps that are never taken back: what the run began with, or what a handoff has rewritten.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.view, self.given = session, HistoryView(), 0
        self._steps: list[Step] = []
        self._speakers: list[Agent[Any]] = []

    def commit(self, step: Step, speaker: Agent[Any]) -> None:
        """A step that ends where the view ends now."""
        self._steps.append(self._session.commit(step))
        self._speakers.append(speaker)
        self.view.step_ends()

    def keep(self) -> None:
        """Nothing of what is there now can be taken back any more."""
        self.given = len(self._steps)

    def back(self, to_step: int, *, speaker: Agent[Any]) -> Agent[Any]:
        """Cut before a step; what cannot be taken back is committed again.

        Args:
            to_step: of the session, from 0.
            speaker: who goes on where nobody has spoken after that.

        Returns:
            Whose turn it is now.
        """
        at = max(to_step, self.given)
        if at < len(self._speakers):
            speaker = self._speakers[at]
        self.view.cut(at)
        again = self._steps[to_step:at]
        del self._steps[to_step:], self._speakers[at:]
        for step in again:
            self._steps.append(self._session.commit(step))
        return speaker

    def repair(self, step: int, field: str, text: str) -> None:
        """Put a text in place of what a call of a step returned; ``field`` is ``observations[i]``."""
        at = int(field.partition("[")[2].rstrip("]"))
        self.view.repair(self._steps[step].observations[at].call_id, text)
