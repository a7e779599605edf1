"""Features of a step's position: ordinals, roles, neighbours and the layout of the run."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Collection

from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole
from agentguard.judge.embedded.features.run_state import RunContext, RunProgress

_SHORT_TURNS = 5.5  # turns of workers at which the features weight a run equally as short and as long
_DECAY = 2.0


def compute_position_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int, groups: Collection[str]
) -> dict[str, float]:
    """Compute a candidate's role and structure features, and those of position and layout on demand."""
    out = _compute_role_features(layout, context, progress, index)
    out |= _compute_neighbour_features(layout, index)
    if "position" in groups:
        out |= _compute_position_features(layout, index)
    if "layout" in groups:
        out |= _compute_layout_features(layout, index, out)
    return out


def _compute_position_features(layout: RunLayout, index: int) -> dict[str, float]:
    ordinal, count = layout.candidate_ordinals[index], len(layout.candidates)
    end = count - 1 - ordinal
    return {
        "position.ordinal": ordinal,
        "position.log_ordinal": math.log1p(ordinal),
        "position.fraction": ordinal / max(1, count - 1),
        "position.from_end": end,
        "position.log_from_end": math.log1p(end),
        "position.first": ordinal == 0,
        "position.second": ordinal == 1,
        "position.last": end == 0,
        "position.candidates": count,
    }


def _compute_role_features(
    layout: RunLayout, context: RunContext, progress: RunProgress, index: int
) -> dict[str, float]:
    steps, workers, agent = layout.run.steps, layout.worker_steps, layout.run.steps[index].agent
    turn, remaining_turns = count_turns_around(layout, index)
    candidates, ordinal = layout.candidates, layout.candidate_ordinals[index]
    agent_turns, last = context.turns_by_agent[agent]
    before = index - 1
    return {
        "role.worker": layout.roles[index] is SpeakerRole.WORKER,
        "role.orchestrator": layout.roles[index] is SpeakerRole.ORCHESTRATOR,
        "role.orchestrated": layout.has_orchestrator,
        "role.turn": turn,
        "role.turns_left": remaining_turns,
        "role.turns": len(workers),
        "role.last_turn": bool(workers) and index == workers[-1],
        "role.first_turn": bool(workers) and index == workers[0],
        "role.turn_fraction": turn / max(1, len(workers) - 1),
        "role.brief": index in layout.task_handoffs,
        "role.after_brief": ordinal > 0
        and before in layout.task_handoffs
        and candidates[ordinal - 1] == before,
        "role.own_turn": progress.turns.get(agent, (0, frozenset()))[0],
        "role.new_agent": agent not in progress.turns,
        "role.share": agent_turns / len(candidates),
        "role.opened": agent == steps[candidates[0]].agent,
        "role.last_of_agent": index == last,
    }


def count_turns_around(layout: RunLayout, index: int) -> tuple[float, float]:
    """Count the workers' turns before and after a step; a step of another role is between two turns."""
    if index in layout.turn_ordinals:
        turn = layout.turn_ordinals[index]
        return turn, len(layout.worker_steps) - 1 - turn
    before = bisect_left(layout.worker_steps, index)
    return before - 0.5, len(layout.worker_steps) - before - 0.5


_NEIGHBOUR_ROLES = (SpeakerRole.EXECUTOR, SpeakerRole.ORCHESTRATOR, SpeakerRole.USER, SpeakerRole.WORKER)


def _compute_neighbour_features(layout: RunLayout, index: int) -> dict[str, float]:
    steps, roles, count = layout.run.steps, layout.roles, len(layout.roles)
    before = roles[index - 1] if index else None
    after = roles[index + 1] if index + 1 < count else None
    out: dict[str, float] = {}
    for role in _NEIGHBOUR_ROLES:
        out[f"structure.after_{role}"] = before is role
        out[f"structure.before_{role}"] = after is role
    agent = steps[index].agent
    out["structure.same_before"] = index > 0 and steps[index - 1].agent == agent
    out["structure.same_after"] = after is not None and steps[index + 1].agent == agent
    out["structure.at_end"] = after is None
    out["structure.answered"] = layout.has_final_answer
    out["structure.names_next"] = after is not None and _is_named(
        steps[index + 1].agent, layout.step_scans[index].lower_text
    )
    return out


def _is_named(agent: str, lower_text: str) -> bool:
    """Return whether a text contains an agent's name as a whole word."""
    name = agent.lower()
    return name in lower_text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", lower_text) is not None


def _compute_layout_features(layout: RunLayout, index: int, known: dict[str, float]) -> dict[str, float]:
    turns, turn, works = len(layout.worker_steps), known["role.turn"], index in layout.turn_ordinals
    remaining_turns, is_orchestrator = (
        known["role.turns_left"],
        layout.roles[index] is SpeakerRole.ORCHESTRATOR,
    )
    short = 1 / (1 + math.exp(min(50.0, turns - _SHORT_TURNS)))
    last, first, second = works and remaining_turns == 0, works and turn == 0, works and turn == 1
    new = works and turn > 0 and bool(known["role.new_agent"])
    early, late = math.exp(-turn / _DECAY), math.exp(-remaining_turns / _DECAY)
    edge = math.exp(-0.5 / _DECAY)
    after = index + 1
    return {
        "layout.first_turn": first,
        "layout.second_turn": second,
        "layout.third_turn": works and turn == 2,
        "layout.last_turn": last,
        "layout.last_turn_short": last * short,
        "layout.last_turn_long": last * (1 - short),
        "layout.first_turn_long": first * (1 - short),
        "layout.first_turns_long": (first or second) * (1 - short),
        "layout.last_but_one": works and remaining_turns == 1,
        "layout.new_agent": new,
        "layout.new_agent_late": new and remaining_turns <= 1,
        "layout.last_turn_answered": last * layout.has_final_answer,
        "layout.last_turn_cut": last * (not layout.has_final_answer),
        "layout.log_candidates": math.log(len(layout.candidates)),
        "layout.directs_after_last": is_orchestrator and remaining_turns < 0.5,
        "layout.directs_before_turn": is_orchestrator
        and after < len(layout.roles)
        and layout.roles[after] is SpeakerRole.WORKER,
        "layout.brief": index in layout.task_handoffs,
        "layout.early": early if works else 0.0,
        "layout.late": late if works else 0.0,
        "layout.directs_early": 0.0 if works else early * edge,
        "layout.directs_late": 0.0 if works else late * edge,
        "layout.late_short": late * short if works else 0.0,
        "layout.early_long": early * (1 - short) if works else 0.0,
        "layout.directs_late_short": 0.0 if works else late * edge * short,
        "layout.stretch": _count_steps_since_other_worker(layout, index),
    }


def _count_steps_since_other_worker(layout: RunLayout, index: int) -> float:
    """Count the steps since another worker spoke, at most 40."""
    agent = layout.run.steps[index].agent
    for distance, other_index in enumerate(range(index - 1, max(-1, index - 40), -1)):
        if layout.roles[other_index] is SpeakerRole.WORKER and layout.run.steps[other_index].agent != agent:
            return distance
    return min(index, 40)
