"""Roles of the agents in a run, inferred from its structure: task handoff, workers and coordinators.

No rule is specific to a benchmark. The only word list has common names of coordinating agents.
"""

from __future__ import annotations

import re

from agentguard.detect.result_classification import classify_result
from agentguard.trajectory.model import Source, Step, Trajectory

_COORDINATOR_NAMES = frozenset(
    {"coordinator", "dispatcher", "host", "manager", "moderator", "orchestrator", "router", "supervisor"}
)
_IGNORED_NAME_PARTS = frozenset({"agent", "ai", "bot", "llm"})
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NON_WORD = re.compile(r"\W+")
_TASK_PREFIX_CHARS = 120  # characters of the task that a task handoff must repeat


def find_coordinators(trajectory: Trajectory) -> frozenset[str]:
    """Return the agents whose name is that of a coordinator; empty if there is no other agent."""
    agents = {step.agent for step in trajectory.steps if step.source is Source.AGENT}
    coordinators = frozenset(filter(_is_coordinator_name, agents))
    return coordinators if agents - coordinators else frozenset()


def find_agent_steps(trajectory: Trajectory) -> tuple[int, ...]:
    """Return the indices of steps by agents, not by the user, the system or the environment."""
    return tuple(step.index for step in trajectory.steps if step.source is Source.AGENT)


def find_task_handoff(trajectory: Trajectory) -> int | None:
    """Return the index of a task handoff: a first step of an agent that contains the task, else None.

    In some recordings, the first step is by an agent that passes on the task as its own message.
    """
    if not trajectory.steps or not trajectory.task:
        return None
    first = trajectory.steps[0]
    head = _normalize_text(trajectory.task)[:_TASK_PREFIX_CHARS]
    is_handoff = first.source is Source.AGENT and bool(head) and head in _normalize_text(first.content)
    return 0 if is_handoff else None


def find_worker_steps(trajectory: Trajectory) -> tuple[int, ...]:
    """Return the indices of agents' steps without task handoff and coordinators; all, if no step remains."""
    coordinators, handoff = find_coordinators(trajectory), find_task_handoff(trajectory)
    agent_steps = find_agent_steps(trajectory)
    workers = tuple(i for i in agent_steps if i != handoff and trajectory.steps[i].agent not in coordinators)
    return workers or agent_steps


def has_environment_response(trajectory: Trajectory, index: int) -> bool:
    """Return whether a step has observations, or a step of the environment follows it."""
    if trajectory.steps[index].observations:
        return True
    after = index + 1
    return after < len(trajectory.steps) and trajectory.steps[after].source is Source.ENVIRONMENT


def list_outcome_steps(trajectory: Trajectory, index: int) -> tuple[Step, ...]:
    """Return a step and the environment's steps directly after it, which show its outcome."""
    end = index + 1
    while end < len(trajectory.steps) and trajectory.steps[end].source is Source.ENVIRONMENT:
        end += 1
    return trajectory.steps[index:end]


def has_failed_outcome(trajectory: Trajectory, index: int) -> bool:
    """Return whether the outcome of a step was an error: by its flag or, if unflagged, by its text."""
    for step in list_outcome_steps(trajectory, index):
        if step.source is Source.ENVIRONMENT and classify_result(step.content.lower()).is_error:
            return True
        if any(classify_result(one.content.lower(), flag=one.is_error).is_error for one in step.observations):
            return True
    return False


def _is_coordinator_name(agent: str) -> bool:
    """Return whether the last significant part of a name is a coordinator's: "data_manager_expert" is not."""
    parts = [part.lower() for part in _NAME_PART.findall(agent)]
    significant = [part for part in parts if part not in _IGNORED_NAME_PARTS]
    return bool(significant) and significant[-1] in _COORDINATOR_NAMES


def _normalize_text(text: str) -> str:
    return _NON_WORD.sub(" ", text).strip().casefold()
