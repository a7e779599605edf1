"""Judge and store of a guard with faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from agentguard._sync_async import Effects, run_sync
from agentguard.judge.base import Judge, JudgeAnswer, Question
from agentguard.trajectory.model import Trajectory

JUDGE_SITE: Final = "guard:judge"
STORE_SITE: Final = "guard:store"
_DURABLE_CALLS: Final = frozenset({"claim", "settle", "list_effects"})

RunCall = Callable[[str, dict[str, Any]], Effects[Any]]
"""Function that runs a call of a site with the fault of a campaign."""


class JudgeStandIn:
    """Judge whose answers may have a fault; other members are those of the judge.

    Args:
        judge: the judge.
        run_call: function that runs a call with the fault.
    """

    def __init__(self, judge: Judge, run_call: RunCall) -> None:
        self._judge, self._run_call = judge, run_call

    def __getattr__(self, name: str) -> Any:
        """Return another member of the judge."""
        return getattr(self._judge, name)

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Return the answers of the judge, with the fault."""
        call = self._run_call(JUDGE_SITE, {"questions": [question.id for question in questions]})
        answers: tuple[JudgeAnswer, ...] = run_sync(call, lambda _: self._judge.decide(transcript, questions))
        return answers


class StoreStandIn:
    """Store whose claims and results of effects may have a fault; other members are those of the store.

    Args:
        store: the store.
        run_call: function that runs a call with the fault.
    """

    def __init__(self, store: Any, run_call: RunCall) -> None:
        self._store, self._run_call = store, run_call

    def __getattr__(self, name: str) -> Any:
        """Return a member of the store, with the fault if the guard waits for the database in it."""
        member = getattr(self._store, name)
        if name not in _DURABLE_CALLS:
            return member

        def execute(*args: Any, **named: Any) -> Any:
            call = self._run_call(STORE_SITE, {"operation": name})
            return run_sync(call, lambda _: member(*args, **named))

        return execute
