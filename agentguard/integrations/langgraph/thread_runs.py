"""Registry of the latest run of each thread; it assigns a call to a new run or to an interrupted one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentguard._bounded_map import BoundedMap
from agentguard.integrations.langchain.messages import build_step, drop_incomplete_turn, split_turns
from agentguard.integrations.langgraph.checkpoints import get_answer, get_messages, get_task, starts_run
from agentguard.integrations.langgraph.driver import RUN_ID_KEY, GraphRun
from agentguard.integrations.langgraph.graph_inspection import GraphInfo
from agentguard.recover.capabilities import Capabilities
from agentguard.runtime.resumption import discard_unknown_steps, list_disabled_tools
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

_MAX_THREADS = 1024
"""Number of threads with a run in memory; the run of another thread is rebuilt from its state."""


class ThreadRuns:
    """Registry of the latest run of each thread; thread-safe.

    Args:
        guard: the guard whose rules apply.
        graph_info: properties of the graph.
        agent: name of the agent in the trajectory.
        ask: called with a question when a person must decide.
        on_run: called with the session of each run when the run begins.
    """

    def __init__(
        self,
        guard: Guard,
        graph_info: GraphInfo,
        *,
        agent: str,
        ask: Callable[[str], str] | None,
        on_run: Callable[[Session], None] | None,
    ) -> None:
        self._guard, self._graph_info, self._agent = guard, graph_info, agent
        self._ask, self._on_run = ask, on_run
        self._runs = BoundedMap[str, GraphRun](_MAX_THREADS)
        self._lock = threading.Lock()

    def get_latest(self, thread: str) -> GraphRun | None:
        """Return the latest run of a thread; None before its first run."""
        return self._runs.get(thread)

    def resolve(
        self, thread: str, input: Any, config: Mapping[str, Any], head: Any
    ) -> tuple[GraphRun, str | None]:
        """Return the run of a call, and a person's answer to the guard's question or None."""
        latest = self.get_latest(thread)
        is_earlier = "checkpoint_id" in config["configurable"]  # the caller chose an is_earlier checkpoint
        if latest is not None and not (starts_run(input) or is_earlier or latest.session.has_ended):
            answer = get_answer(input) if latest.pending_question is not None else None
            return latest, answer
        task = get_task(input)
        if task is None:
            task = get_task({"messages": get_messages(head)}) or ""
        stored_run_id = (head.metadata or {}).get(RUN_ID_KEY)
        if (
            starts_run(input)
            or is_earlier
            or not head.next
            or stored_run_id is None
            or self._guard.components.store is None
        ):
            return self._start_run(thread, task), None
        run = self._start_run(thread, task, run_id=stored_run_id)  # interrupted in another process
        messages = get_messages(head)
        discard_unknown_steps(
            run.session,
            [build_step(turn, agent=self._agent) for turn in split_turns(drop_incomplete_turn(messages))],
        )
        run.branch.align_to_session(messages, len(run.session))
        for turn in run.branch.add_new_turns(drop_incomplete_turn(messages), len(run.session)):
            run.session.commit(build_step(turn, agent=self._agent))
        return run, None

    def _start_run(self, thread: str, task: str, *, run_id: str | None = None) -> GraphRun:
        """Start a new run, or restore the run with this ID from the store."""
        meta = Trajectory(
            id=run_id or uuid.uuid4().hex[:12],
            format="event_log",
            task=task,
            steps=(),
            tools=self._graph_info.specs,
        )
        has_middleware = self._graph_info.has_middleware
        capabilities = Capabilities(
            fork=True,
            compensate=True,
            restart=True,
            reject=has_middleware,
            disable_tools=has_middleware,
            repair=has_middleware,
            sample=has_middleware,
            # The middleware cannot interrupt the graph, so its questions need `ask`.
            escalate=self._ask is not None or not has_middleware,
        )
        run = GraphRun(self._guard.session(meta, capabilities, resume=run_id is not None))
        run.ask, run.disabled_tools = self._ask, list_disabled_tools(run.session)
        if self._on_run is not None:
            self._on_run(run.session)
        with self._lock:
            self._runs[thread] = run
        return run
