"""Driver of one call of a guarded graph, for the sync and async methods.

The graph reports each turn boundary before the turn runs. The driver commits the turns before the boundary to
the session. If the session has a plan, the driver pauses the graph there, forks or extends the state, and
continues in a new segment.
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
from agentguard.integrations.langchain.messages import build_guard_message, build_step, build_stop_message
from agentguard.integrations.langchain.run import RUN_CONFIG_KEY, AgentRun
from agentguard.integrations.langchain.state_updates import build_repaired_results
from agentguard.integrations.langgraph.checkpoints import get_messages, read_messages, select_latest
from agentguard.integrations.langgraph.graph_inspection import GraphInfo
from agentguard.recover.actions import DisableTools, Escalate, Restart, Rewind
from agentguard.recover.effect_store import Effect
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session, end_session
from agentguard.runtime.tool_execution import collect_messages

ALL_NODES = "*"
RUN_ID_KEY = "agentguard_run"
"""Key of the run's ID in the metadata of its checkpoints."""


class GraphRun(AgentRun):
    """Run of a graph; an interrupted run continues in a later call."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.pending_question: str | None = None
        """Unanswered question of the guard to a person; the value of the guard's interrupt."""


@dataclass(slots=True, kw_only=True)
class GraphChange:
    """Change of the graph's state.

    Attributes:
        fork_step: fork at the boundary with this many steps; None keeps the current state.
        messages: messages to add.
        is_stop: whether the run ends there.
    """

    fork_step: int | None = None
    messages: list[AnyMessage] = field(default_factory=list)
    is_stop: bool = False


class GraphDriver:
    """Driver of one call of a guarded graph.

    Args:
        run: the run that the call starts or resumes.
        graph_info: properties of the graph.
        input: input from the caller.
        config: configuration from the caller.
        options: other arguments of ``invoke`` or ``stream``.
        defaults: the graph, for its own configuration and interrupts.
        agent: name of the agent in the trajectory.

    Attributes:
        input: input of the next segment.
        is_finished: whether the call has ended.
        is_closing: whether the last segment remains, which only outputs the final state.
        options: options of the graph's ``invoke`` or ``stream``.
        segment_count: number of segments that have run.
        is_forked: whether the next segment starts with another state than the end of the last one.
    """

    def __init__(
        self,
        run: GraphRun,
        graph_info: GraphInfo,
        *,
        input: Any,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        defaults: Any,
        agent: str,
    ) -> None:
        self.run, self.input, self.is_finished, self.is_closing = run, input, False, False
        self._agent = agent
        self.segment_count, self.is_forked = 0, False
        self._graph_info, self._config = graph_info, config
        self._interrupt_before = options.get("interrupt_before") or defaults.interrupt_before_nodes or ()
        self._interrupt_after = options.get("interrupt_after") or defaults.interrupt_after_nodes or ()
        self.options = dict(options)
        if options.get("durability") == "exit":
            self.options["durability"] = "async"  # a fork needs the checkpoints of all turns
        self._recursion_limit = config.get("recursion_limit") or (defaults.config or {}).get(
            "recursion_limit"
        )
        self._used_steps, self._last_step = 0, -1
        self._boundary_plan: RecoveryPlan | None = None
        self._is_paused = False

    @property
    def thread(self) -> dict[str, Any]:
        """Return the configuration of the thread at its latest checkpoint."""
        return select_latest(self._config["configurable"])

    def build_config(self) -> dict[str, Any]:
        """Return the configuration of the next segment; the recursion limit covers all segments together.

        Raises:
            GraphRecursionError: the segments have reached the recursion limit.
        """
        configurable = dict(
            self._config["configurable"] if self.segment_count == 0 else self.thread["configurable"]
        )
        config = {**self.add_run_id(self._config), "configurable": {**configurable, RUN_CONFIG_KEY: self.run}}
        if self._recursion_limit is not None:
            remaining = int(self._recursion_limit) - self._used_steps
            if remaining < 1:
                raise GraphRecursionError(
                    f"Recursion limit of {self._recursion_limit} reached, including rolled back steps"
                )
            config["recursion_limit"] = remaining
        return config

    def add_run_id(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration with the run's ID in its metadata, for a process that resumes the run."""
        return {**config, "metadata": {**(config.get("metadata") or {}), RUN_ID_KEY: self.run.session.id}}

    def begin(self, head: StateSnapshot) -> None:
        """Record the position of the thread before the call."""
        self._last_step = (head.metadata or {}).get("step", -1)

    def check_boundary(self, checkpoint: Mapping[str, Any]) -> bool:
        """Commit the turns before a reported checkpoint; return True if the graph must pause there.

        Ignore checkpoints that are not turn boundaries. If the caller pauses the graph at this boundary, or
        resumes it from there, `complete_segment` handles it.
        """
        messages, next_nodes = read_messages(checkpoint["values"]), set(checkpoint["next"])
        if not next_nodes or not next_nodes <= self._graph_info.turn_nodes or self.is_closing:
            return False
        if any(task.get("interrupts") for task in checkpoint["tasks"]):
            return False
        if self._is_caller_pause(messages, next_nodes):
            return False
        self._commit_new_turns(messages)
        self._boundary_plan = self.run.session.check_boundary()
        self._is_paused = self._boundary_plan is not None or self.run.session.stop_reason is not None
        return self._is_paused

    def complete_segment(self, head: StateSnapshot) -> _sync_async.SharedBody[RecoveryPlan | None]:
        """Handle the end of a segment; return a plan for `build_change` and `complete_change`.

        Raises:
            RunStopped: the graph has ended, and the guard rejects its final output.
        """
        step = (head.metadata or {}).get("step", -1)
        self._used_steps, self._last_step = self._used_steps + max(0, step - self._last_step), step
        self.segment_count, self.input, self.is_forked = self.segment_count + 1, None, False
        if self._is_paused:
            self._is_paused, plan = False, self._boundary_plan
            return plan
        if not head.next:
            self._commit_new_turns(get_messages(head))
            plan = yield from end_session(self.run.session)
            if plan is not None and self.run.session.stop_reason is not None:
                raise RunStopped(self.run.session.stop_reason)  # the final output is rejected
            self.is_finished = plan is None
            return plan
        self.is_finished = True
        if head.interrupts or not set(head.next) <= self._graph_info.turn_nodes:
            return None
        self._commit_new_turns(get_messages(head))
        return self.run.session.check_boundary()

    def build_change(
        self, plan: RecoveryPlan | None, failed_effects: Sequence[Effect], head: StateSnapshot
    ) -> GraphChange | None:
        """Build the state change for a plan or a stopped session; None if the state does not change."""
        change = GraphChange()
        run = self.run
        for action in plan.actions if plan is not None else ():
            match action:
                case Rewind(to_step=to_step):
                    change.fork_step = max(to_step, run.branch.task_end)
                case Restart():
                    change.fork_step = run.branch.task_end
                case DisableTools(tools=tools):
                    run.disabled_tools |= set(tools)
                case Escalate(question=question) if run.ask is None:
                    run.pending_question, self.is_finished = question, True
                case _:
                    pass
        if plan is not None:
            change.messages += build_repaired_results(run, get_messages(head), plan)
            change.messages += [
                build_guard_message(text)
                for text in collect_messages(run.session, plan, failed_effects, ask_person=run.ask)
            ]
        if head.next and run.session.stop_reason is not None:
            return GraphChange(
                fork_step=None, messages=[build_stop_message(run.session.stop_reason)], is_stop=True
            )
        return change if change.messages or change.fork_step is not None else None

    def build_answer_change(self, answer: str) -> GraphChange:
        """Build the state change for a person's answer to the guard's question."""
        self.run.pending_question, self.input = None, None
        text = self.run.session.record_person_answer(answer)
        return GraphChange(messages=[build_guard_message(text)])

    def add_as_input(self, change: GraphChange, head: StateSnapshot) -> bool:
        """Add a change to the next input if the graph has ended; return whether that was possible."""
        if head.next or change.fork_step is not None:
            return False
        self.input = {"messages": change.messages}
        return True

    def complete_change(self, head: StateSnapshot, change: GraphChange) -> None:
        """Record that the caller has written a change to the state.

        Raises:
            RecoveryError: the graph does not continue with a turn.
        """
        self._last_step = (head.metadata or {}).get("step", self._last_step)
        self.is_forked = change.fork_step is not None or change.is_stop
        if change.is_stop:
            self.is_closing, self.is_finished = True, False
            self.run.session.end()
        elif not head.next or not set(head.next) <= self._graph_info.turn_nodes:
            raise RecoveryError(
                f"langgraph: after the correction the graph continues with {list(head.next)}, not with a "
                "turn; name the node that sends the correction: guard.langgraph(graph, as_node='...')"
            )

    def _commit_new_turns(self, messages: Sequence[AnyMessage]) -> None:
        run = self.run
        for turn in run.branch.add_new_turns(messages, len(run.session)):
            run.session.commit(build_step(turn, agent=self._agent))

    def _is_caller_pause(self, messages: Sequence[AnyMessage], next_nodes: set[str]) -> bool:
        """Return whether the caller's interrupts pause the graph at a turn boundary."""
        if self._interrupt_before == ALL_NODES or set(self._interrupt_before) & next_nodes:
            return True
        has_run_tools = bool(messages) and isinstance(messages[-1], ToolMessage)
        return has_run_tools and (
            self._interrupt_after == ALL_NODES
            or bool(set(self._interrupt_after) & set(self._graph_info.tools.values()))
        )
