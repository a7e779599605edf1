"""Who does what in a run, told from its shape: the brief, the workers, those who only hand on work.

Nothing here knows a benchmark. The one list of words is of what people call an agent that steers others.
"""

from __future__ import annotations

import re

from agentguard.detect.error_patterns import ToolErrorKind, match_error
from agentguard.trajectory.model import Source, Step, Trajectory

_COORDINATOR_NAMES = frozenset(
    {"coordinator", "dispatcher", "host", "manager", "moderator", "orchestrator", "router", "supervisor"}
)
_IGNORED_NAME_PARTS = frozenset({"agent", "ai", "bot", "llm"})
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NON_WORD = re.compile(r"\W+")
_TASK_PREFIX_CHARS = 120  # characters of the task that must reappear in a step for it to be the brief


def find_coordinators(trajectory: Trajectory) -> frozenset[str]:
    """Names of the agents that steer others, by name; none if nobody else would be left to do the work."""
    agents = {step.agent for step in trajectory.steps if step.source is Source.AGENT}
    steering = frozenset(filter(_is_coordinator_name, agents))
    return steering if agents - steering else frozenset()


def find_agent_steps(trajectory: Trajectory) -> tuple[int, ...]:
    """Indices of the steps that an agent made, as against the user, the system and the environment."""
    return tuple(step.index for step in trajectory.steps if step.source is Source.AGENT)


def find_task_handoff(trajectory: Trajectory) -> int | None:
    """Index of an agent's first step if all it does is to hand on the task, else None.

    Some recordings open with an agent that passes on the task as a message of its own. It is known by
    the task reappearing in it, and only an opening step can be one.
    """
    if not trajectory.steps or not trajectory.task:
        return None
    first = trajectory.steps[0]
    head = _normalize_text(trajectory.task)[:_TASK_PREFIX_CHARS]
    opens = first.source is Source.AGENT and bool(head) and head in _normalize_text(first.content)
    return 0 if opens else None


def find_worker_steps(trajectory: Trajectory) -> tuple[int, ...]:
    """Indices of the agents' steps after the brief, without those who steer; if none is left, all."""
    steering, opening = find_coordinators(trajectory), find_task_handoff(trajectory)
    acting = find_agent_steps(trajectory)
    workers = tuple(i for i in acting if i != opening and trajectory.steps[i].agent not in steering)
    return workers or acting


def has_environment_response(trajectory: Trajectory, index: int) -> bool:
    """Whether the environment speaks right after a step, or answered inside it."""
    if trajectory.steps[index].observations:
        return True
    after = index + 1
    return after < len(trajectory.steps) and trajectory.steps[after].source is Source.ENVIRONMENT


def list_outcome_steps(trajectory: Trajectory, index: int) -> tuple[Step, ...]:
    """The step itself and the environment's steps that directly follow it: where its outcome can be read."""
    end = index + 1
    while end < len(trajectory.steps) and trajectory.steps[end].source is Source.ENVIRONMENT:
        end += 1
    return trajectory.steps[index:end]


def has_failed_outcome(trajectory: Trajectory, index: int) -> bool:
    """Whether what came back from a step was an error: by its flag or, unflagged, by its text."""
    for step in list_outcome_steps(trajectory, index):
        if step.source is Source.ENVIRONMENT and _is_error(step.content, None):
            return True
        if any(_is_error(seen.content, seen.is_error) for seen in step.observations):
            return True
    return False


def _is_error(text: str, flag: bool | None) -> bool:
    found = match_error(text.lower(), flag=flag)
    # That there was nothing to execute is an answer to a step that wanted nothing executed.
    return found is not None and found.kind is not ToolErrorKind.NO_ACTION


def _is_coordinator_name(agent: str) -> bool:
    """Whether the head of a name, its last telling part, steers: that of a data manager's expert does not."""
    parts = [part.lower() for part in _NAME_PART.findall(agent)]
    telling = [part for part in parts if part not in _IGNORED_NAME_PARTS]
    return bool(telling) and telling[-1] in _COORDINATOR_NAMES


def _normalize_text(text: str) -> str:
    return _NON_WORD.sub(" ", text).strip().casefold()
