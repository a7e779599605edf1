"""Checkpoints and inputs of a graph: fork points, messages, task and answers."""

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
    """Search for the boundary with a given number of steps, from the newest checkpoint backwards.

    Args:
        run: the run on the current branch.
        graph_info: properties of the graph.
        step_count: number of steps before the boundary.
        head: the newest checkpoint; the search follows its parents and skips abandoned branches.
    """

    def __init__(self, run: AgentRun, graph_info: GraphInfo, step_count: int, head: StateSnapshot) -> None:
        self._run, self._graph_info, self._step_count = run, graph_info, step_count
        self._next_id = _get_checkpoint_id(head.config)
        self._found: StateSnapshot | None = None

    def visit(self, snapshot: StateSnapshot) -> bool:
        """Check the next older checkpoint of the thread; return True if the search is over."""
        if _get_checkpoint_id(snapshot.config) != self._next_id:
            return False
        self._next_id = _get_checkpoint_id(snapshot.parent_config)
        messages = get_messages(snapshot)
        steps = self._run.branch.count_steps(messages)
        if steps == self._step_count and snapshot.next and set(snapshot.next) <= self._graph_info.turn_nodes:
            self._found = snapshot
            # Prefer an older checkpoint without the guard's message, which is part of the abandoned branch.
            return not (messages and is_guard_message(messages[-1]))
        return steps < self._step_count or self._next_id is None

    @property
    def snapshot(self) -> StateSnapshot:
        """Return the checkpoint.

        Raises:
            RecoveryError: the thread has no such checkpoint.
        """
        if self._found is None:
            raise RecoveryError(
                f"langgraph: this thread has no checkpoint before step {self._step_count}, so the run cannot "
                "be forked there. Steps that ran with durability='exit' outside of the guard have no "
                "checkpoint, and some checkpointers keep only the latest one"
            )
        return self._found


def get_messages(head: StateSnapshot) -> list[AnyMessage]:
    """Return the messages of a checkpoint."""
    return read_messages(head.values)


def read_messages(values: Any) -> list[AnyMessage]:
    """Return the messages in the values of a state."""
    messages = values.get("messages") if isinstance(values, Mapping) else getattr(values, "messages", None)
    return list(messages or ())


def find_source_node(snapshot: StateSnapshot, graph_info: GraphInfo) -> str | None:
    """Return the tool node before a boundary, as the source node of messages added there.

    LangGraph cannot infer the node if calls are sent to tools one by one, as in ``create_agent``; it would
    choose the model's node. For a call of an unknown tool, return any tool node. Return None if the last
    message is not a tool result; then LangGraph can infer the node.
    """
    messages = [message for message in get_messages(snapshot) if not is_guard_message(message)]
    last = messages[-1] if messages else None
    if not isinstance(last, ToolMessage):
        return None
    return graph_info.tools.get(last.name or "") or next(iter(graph_info.tools.values()), None)


def get_task(input: Any) -> str | None:
    """Return the last user message of an input; None if there is no user message."""
    if input is None or isinstance(input, Command):
        return None
    value = input.get("messages") if isinstance(input, Mapping) else getattr(input, "messages", None)
    if not value:
        return None
    messages = convert_to_messages(value if isinstance(value, list) else [value])
    prompts = [one for one in messages if isinstance(one, HumanMessage) and not is_guard_message(one)]
    return prompts[-1].text if prompts else None


def starts_run(input: Any) -> bool:
    """Return whether an input begins a run; False if it resumes an interrupted one."""
    return input is not None and not isinstance(input, Command)


def get_answer(input: Any) -> str | None:
    """Return a person's answer to the guard, from a command that resumes the run."""
    answer = input.resume if isinstance(input, Command) else None
    if isinstance(answer, Mapping) and len(answer) == 1:
        answer = next(iter(answer.values()))
    return None if answer is None else str(answer)


def select_latest(configurable: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a thread at its latest checkpoint."""
    return {"configurable": {key: value for key, value in configurable.items() if key != "checkpoint_id"}}


def _get_checkpoint_id(config: Mapping[str, Any] | None) -> str | None:
    return None if config is None else config["configurable"].get("checkpoint_id")
