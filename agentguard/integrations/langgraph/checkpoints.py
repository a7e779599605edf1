"""Reading what a graph was given and what its checkpoints hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages
from langgraph.types import Command, StateSnapshot

from agentguard.errors import RecoveryError
from agentguard.integrations.langchain.messages import is_guard_message
from agentguard.integrations.langchain.run import AgentRun
from agentguard.integrations.langgraph.graph_inspection import GraphInfo


class ForkPointSearch:
    """Looks for the boundary with so many steps on the live line, from the newest checkpoint back.

    Args:
        run: whose line it is.
        shape: of the graph.
        steps: how many steps lie behind the boundary.
        head: the newest checkpoint; branches that were left earlier lie beside its line.
    """

    def __init__(self, run: AgentRun, graph_info: GraphInfo, step_count: int, head: StateSnapshot) -> None:
        self._run, self._graph_info, self._step_count = run, graph_info, step_count
        self._next_id = _get_checkpoint_id(head.config)
        self._found: StateSnapshot | None = None

    def visit(self, snapshot: StateSnapshot) -> bool:
        """Look at the next older checkpoint of the thread; True where nothing better can come."""
        if _get_checkpoint_id(snapshot.config) != self._next_id:
            return False
        self._next_id = _get_checkpoint_id(snapshot.parent_config)
        messages = get_messages(snapshot)
        steps = self._run.branch.count_steps(messages)
        if steps == self._step_count and snapshot.next and set(snapshot.next) <= self._graph_info.turn_nodes:
            self._found = snapshot
            # An older one without what the guard said there before is better: that belongs to the line left.
            return not (messages and is_guard_message(messages[-1]))
        return steps < self._step_count or self._next_id is None

    @property
    def snapshot(self) -> StateSnapshot:
        """The checkpoint.

        Raises:
            RecoveryError: it was not kept.
        """
        if self._found is None:
            raise RecoveryError(
                f"langgraph: no checkpoint before step {self._step_count} is left on this thread, so the run "
                "cannot be forked there; steps that ran with durability='exit' outside of the guard leave "
                "none, and neither does a checkpointer that keeps the latest alone"
            )
        return self._found


def get_messages(head: StateSnapshot) -> list[AnyMessage]:
    """The messages of a state."""
    values = head.values
    given = values.get("messages") if isinstance(values, Mapping) else getattr(values, "messages", None)
    return list(given or ())


def find_source_node(snapshot: StateSnapshot, graph_info: GraphInfo) -> str | None:
    """The tool node that led to a boundary, which a message added there is said to come from.

    LangGraph cannot tell by itself where tools are sent their calls one by one, as in ``create_agent``, and
    would take the model's node for it. None where no tool was called last: there it can.
    """
    said = [message for message in get_messages(snapshot) if not is_guard_message(message)]
    last = said[-1] if said else None
    return graph_info.tools.get(last.name or "") if isinstance(last, ToolMessage) else None


def get_task(input: Any) -> str | None:
    """The last thing a person says in an input; None if nobody says anything."""
    if input is None or isinstance(input, Command):
        return None
    given = input.get("messages") if isinstance(input, Mapping) else getattr(input, "messages", None)
    if not given:
        return None
    several = given if isinstance(given, list) else [given]
    said = [
        m for m in convert_to_messages(several) if isinstance(m, HumanMessage) and not is_guard_message(m)
    ]
    return said[-1].text if said else None


def starts_run(input: Any) -> bool:
    """Whether an input begins a run, and does not go on with one that was interrupted."""
    return input is not None and not isinstance(input, Command)


def get_answer(input: Any) -> str | None:
    """What a person answered to the guard, in a command that resumes."""
    given = input.resume if isinstance(input, Command) else None
    if isinstance(given, Mapping) and len(given) == 1:
        given = next(iter(given.values()))
    return None if given is None else str(given)


def _get_checkpoint_id(config: Mapping[str, Any] | None) -> str | None:
    return None if config is None else config["configurable"].get("checkpoint_id")
