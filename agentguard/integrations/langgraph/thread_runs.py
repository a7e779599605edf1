"""Which run a call of a guarded graph belongs to: a new one, or one that was interrupted."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentguard.integrations.langchain.messages import step_of, turns, whole_turns
from agentguard.integrations.langgraph.checkpoints import answer_in, is_new, messages_in, task_in
from agentguard.integrations.langgraph.driver import RUN_ID, GraphRun
from agentguard.integrations.langgraph.graph_inspection import Shape
from agentguard.recover.strategy import Capabilities
from agentguard.runtime.resumption import discard_unknown_steps, list_disabled_tools
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

_KEPT = 1024
"""Threads whose latest run is kept in memory; an older one that goes on is read anew from its state."""


class ThreadRuns:
    """The latest run of each thread.

    Args:
        guard: whose rules hold.
        shape: of the graph.
        agent: its name in the trajectory.
        ask: called with a question when a person must decide.
        on_run: called with the session of each run when it begins.
    """

    def __init__(
        self,
        guard: Guard,
        shape: Shape,
        *,
        agent: str,
        ask: Callable[[str], str] | None,
        on_run: Callable[[Session], None] | None,
    ) -> None:
        self._guard, self._shape, self._agent = guard, shape, agent
        self._ask, self._on_run = ask, on_run
        self._runs: OrderedDict[str, GraphRun] = OrderedDict()
        self._lock = threading.Lock()

    def latest(self, thread: str) -> GraphRun | None:
        """The thread's latest run; None before its first."""
        return self._runs.get(thread)

    def of(
        self, thread: str, input: Any, config: Mapping[str, Any], head: Any
    ) -> tuple[GraphRun, str | None]:
        """The run that a call belongs to, and what a person answers the guard by it."""
        known = self.latest(thread)
        earlier = "checkpoint_id" in config["configurable"]  # the caller goes back by themselves
        if known is not None and not (is_new(input) or earlier or known.session.has_ended):
            answer = answer_in(input) if known.question is not None else None
            return known, answer
        task = task_in(input)
        if task is None:
            task = task_in({"messages": messages_in(head)}) or ""
        kept = (head.metadata or {}).get(RUN_ID)
        if is_new(input) or earlier or not head.next or kept is None or self._guard.components.store is None:
            return self._opened(thread, task), None
        run = self._opened(thread, task, id=kept)  # it was interrupted in another process
        said = messages_in(head)
        discard_unknown_steps(
            run.session, [step_of(turn, agent=self._agent) for turn in turns(whole_turns(said))]
        )
        run.line.adopt(said, len(run.session))
        for turn in run.line.fresh(whole_turns(said), len(run.session)):
            run.session.commit(step_of(turn, agent=self._agent))
        return run, None

    def _opened(self, thread: str, task: str, *, id: str | None = None) -> GraphRun:
        """A new run, or the one of that id as the store knows it."""
        meta = Trajectory(
            id=id or uuid.uuid4().hex[:12], format="event_log", task=task, steps=(), tools=self._shape.specs
        )
        inside = self._shape.middleware
        can = Capabilities(
            fork=True,
            compensate=True,
            restart=True,
            reject=inside,
            disable_tools=inside,
            repair=inside,
            sample=inside,
            # The middleware cannot interrupt: where a person is asked about an answer, `ask` must do it.
            escalate=self._ask is not None or not inside,
        )
        run = GraphRun(self._guard.session(meta, can, resume=id is not None))
        run.ask, run.withheld = self._ask, list_disabled_tools(run.session)
        if self._on_run is not None:
            self._on_run(run.session)
        with self._lock:
            self._runs[thread] = run
            self._runs.move_to_end(thread)
            while len(self._runs) > _KEPT:
                self._runs.popitem(last=False)
        return run
