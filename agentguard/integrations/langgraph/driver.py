"""One call of a guarded graph, segment by segment; what is the same for sync and async.

The graph is run from one turn boundary to the next: it is interrupted before the node that begins a turn.
There its state lies in the checkpointer, whole; the session looks at the turns that are new, and where it has
a plan, the state is forked or added to before the graph goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.errors import GraphRecursionError
from langgraph.types import StateSnapshot

from agentguard import _sync_async
from agentguard.errors import RecoveryError, RunStopped
from agentguard.integrations.langchain.messages import guard_message, step_of, stop_message
from agentguard.integrations.langchain.run import RUN, AgentRun
from agentguard.integrations.langchain.state_updates import results
from agentguard.integrations.langgraph.checkpoints import messages_in
from agentguard.integrations.langgraph.graph_inspection import Shape
from agentguard.recover.effect_ledger import Effect
from agentguard.recover.strategy import DisableTools, Escalate, RecoveryPlan, Restart, Rewind
from agentguard.runtime.session import Session, end_session
from agentguard.runtime.tool_execution import collect_messages

ALL = "*"
RUN_ID = "agentguard_run"
"""What a run's id is called in the metadata of its checkpoints."""


class GraphRun(AgentRun):
    """A run that may be interrupted and gone on with: it outlives a call."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.question: str | None = None
        """What a person was asked by an interrupt of the guard's own, and has not answered."""


@dataclass(slots=True, kw_only=True)
class GraphChange:
    """What is to be done to the graph's state.

    Attributes:
        fork_at: go back to the boundary with so many steps; None stays where it is.
        messages: to be added there.
        stop: the run ends there.
    """

    fork_at: int | None = None
    messages: list[AnyMessage] = field(default_factory=list)
    stop: bool = False


class Drive:
    """One call.

    Args:
        run: the run it belongs to.
        shape: what the graph looks like.
        input: what the caller gave.
        config: as the caller gave it.
        options: the other arguments of ``invoke`` or ``stream``.
        defaults: the graph, for its own config and interrupts.
        agent: name of the agent, as the trajectory shows it.

    Attributes:
        input: of the next segment.
        over: the call has come to its end.
        closing: one segment is left, which only tells what the state is.
        segment: how many have been run.
        forked: the next one begins with another state than the last one ended with.
    """

    def __init__(
        self,
        run: GraphRun,
        shape: Shape,
        *,
        input: Any,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        defaults: Any,
        agent: str,
    ) -> None:
        self.run, self.input, self.over, self.closing = run, input, False, False
        self._agent = agent
        self.segment, self.forked = 0, False
        self._shape, self._config = shape, config
        self._before = options.get("interrupt_before") or defaults.interrupt_before_nodes or ()
        self._after = options.get("interrupt_after") or defaults.interrupt_after_nodes or ()
        pauses = ALL if self._before == ALL else sorted({*self._before, *shape.before})
        self.options = {**options, "interrupt_before": pauses}
        self._limit = config.get("recursion_limit") or (defaults.config or {}).get("recursion_limit")
        self._used, self._base = 0, -1

    @property
    def thread(self) -> dict[str, Any]:
        """The thread, at its latest checkpoint."""
        given = self._config["configurable"]
        return {"configurable": {key: value for key, value in given.items() if key != "checkpoint_id"}}

    def config(self) -> dict[str, Any]:
        """The config of the next segment; the caller's recursion limit is one for all segments together.

        Raises:
            GraphRecursionError: nothing is left.
        """
        where = dict(self._config["configurable"] if self.segment == 0 else self.thread["configurable"])
        made = {**self.marked(self._config), "configurable": {**where, RUN: self.run}}
        if self._limit is not None:
            left = int(self._limit) - self._used
            if left < 1:
                raise GraphRecursionError(
                    f"Recursion limit of {self._limit} reached, the steps that rollbacks left counted with it"
                )
            made["recursion_limit"] = left
        return made

    def marked(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A config that lets the run's id be kept with each checkpoint, so that a new process knows it."""
        return {**config, "metadata": {**(config.get("metadata") or {}), RUN_ID: self.run.session.id}}

    def begin(self, head: StateSnapshot) -> None:
        """Take note of where the thread stands before the call."""
        self._base = (head.metadata or {}).get("step", -1)

    def took(self, head: StateSnapshot) -> _sync_async.Effects[RecoveryPlan | None]:
        """Take in what a segment did; a plan is to be carried out with `change`, then `went`.

        A body: it yields what may take long.

        Raises:
            RunStopped: the graph has ended, and the guard blocks what it said last.
        """
        step = (head.metadata or {}).get("step", -1)
        self._used, self._base = self._used + max(0, step - self._base), step
        self.segment, self.input, self.forked = self.segment + 1, None, False
        if not head.next:
            self._take_in(head)
            plan = yield from end_session(self.run.session)
            if plan is not None and self.run.session.stop_reason is not None:
                raise RunStopped(self.run.session.stop_reason)  # what it said last is not handed on
            self.over = plan is None
            return plan
        if head.interrupts or not set(head.next) <= self._shape.before:
            self.over = bool(head.interrupts) or not set(head.next) & self._shape.before
            return None
        self._take_in(head)
        self.over = self._callers_pause(head)
        return self.run.session.check_boundary()

    def change(
        self, plan: RecoveryPlan | None, failed: Sequence[Effect], head: StateSnapshot
    ) -> GraphChange | None:
        """What a plan, or a session that has stopped, means for the graph's state; None is nothing."""
        made = GraphChange()
        run = self.run
        for action in plan.actions if plan is not None else ():
            match action:
                case Rewind(to_step=to_step):
                    made.fork_at = max(to_step, run.line.task)
                case Restart():
                    made.fork_at = run.line.task
                case DisableTools(tools=tools):
                    run.withheld |= set(tools)
                case Escalate(question=question) if run.ask is None:
                    run.question, self.over = question, True
                case _:
                    pass
        if plan is not None:
            made.messages += results(run, messages_in(head), plan)
            made.messages += [
                guard_message(text) for text in collect_messages(plan, failed, ask_person=run.ask)
            ]
        if head.next and run.session.stop_reason is not None:
            return GraphChange(fork_at=None, messages=[stop_message(run.session.stop_reason)], stop=True)
        return made if made.messages or made.fork_at is not None else None

    def answered(self, answer: str) -> GraphChange:
        """What a person's answer to the guard's question means for the state."""
        self.run.question, self.input = None, None
        return GraphChange(messages=[guard_message(answer)])

    def added(self, change: GraphChange, head: StateSnapshot) -> bool:
        """Whether a change is just new input of a graph that has ended; then nothing is written."""
        if head.next or change.fork_at is not None:
            return False
        self.input = {"messages": change.messages}
        return True

    def went(self, now: StateSnapshot, change: GraphChange) -> None:
        """Take note of the state that was written.

        Raises:
            RecoveryError: the graph would not go on with a turn from there.
        """
        self._base = (now.metadata or {}).get("step", self._base)
        self.forked = change.fork_at is not None or change.stop
        if change.stop:
            self.closing, self.over = True, False
            self.run.session.end()
        elif not now.next or not set(now.next) <= self._shape.before:
            raise RecoveryError(
                f"langgraph: after the correction the graph would go on with {list(now.next)}, not with a "
                "turn; say which node the correction is to come from: guard.langgraph(graph, as_node='...')"
            )

    def _take_in(self, head: StateSnapshot) -> None:
        run = self.run
        for turn in run.line.fresh(messages_in(head), len(run.session)):
            run.session.commit(step_of(turn, agent=self._agent))

    def _callers_pause(self, head: StateSnapshot) -> bool:
        if self._before == ALL or set(self._before) & set(head.next):
            return True
        messages = messages_in(head)
        ran = bool(messages) and isinstance(messages[-1], ToolMessage)
        return ran and (self._after == ALL or bool(set(self._after) & set(self._shape.tools.values())))
