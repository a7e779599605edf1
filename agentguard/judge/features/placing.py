"""Features of where a step stands: ordinals, roles, neighbours and the layout of the run."""

from __future__ import annotations

import math
from bisect import bisect_left

from agentguard.judge.features.layout import Layout, Role
from agentguard.judge.features.walk import Walk, Whole

_SHORT_TURNS = 5.5  # workers' turns at which a run counts as half short, half long
_DECAY = 2.0


def placing(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    """Position, role and layout of one candidate."""
    out = _position(held, index)
    out |= _role(held, facts, walk, index)
    out |= _neighbours(held, index)
    out |= _layout(held, index, out)
    return out


def _position(held: Layout, index: int) -> dict[str, float]:
    place, count = held.place[index], len(held.candidates)
    end = count - 1 - place
    return {
        "position.ordinal": place,
        "position.log_ordinal": math.log1p(place),
        "position.fraction": place / max(1, count - 1),
        "position.from_end": end,
        "position.log_from_end": math.log1p(end),
        "position.first": place == 0,
        "position.second": place == 1,
        "position.last": end == 0,
        "position.candidates": count,
    }


def _role(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    steps, workers, agent = held.run.steps, held.workers, held.run.steps[index].agent
    turn, left = turns_around(held, index)
    candidates, place = held.candidates, held.place[index]
    mine, last = facts.turns_of[agent]
    before = index - 1
    return {
        "role.worker": held.roles[index] is Role.WORKER,
        "role.orchestrator": held.roles[index] is Role.ORCHESTRATOR,
        "role.orchestrated": held.orchestrated,
        "role.turn": turn,
        "role.turns_left": left,
        "role.turns": len(workers),
        "role.last_turn": bool(workers) and index == workers[-1],
        "role.first_turn": bool(workers) and index == workers[0],
        "role.turn_fraction": turn / max(1, len(workers) - 1),
        "role.brief": index in held.brief,
        "role.after_brief": place > 0 and before in held.brief and candidates[place - 1] == before,
        "role.own_turn": walk.turns.get(agent, (0, frozenset()))[0],
        "role.new_agent": agent not in walk.turns,
        "role.share": mine / len(candidates),
        "role.opened": agent == steps[candidates[0]].agent,
        "role.last_of_agent": index == last,
    }


def turns_around(held: Layout, index: int) -> tuple[float, float]:
    """Workers' turns before a step and after it; halves between them for a step that is none."""
    if index in held.turn:
        turn = held.turn[index]
        return turn, len(held.workers) - 1 - turn
    before = bisect_left(held.workers, index)
    return before - 0.5, len(held.workers) - before - 0.5


_SHOWN = (Role.EXECUTOR, Role.ORCHESTRATOR, Role.USER, Role.WORKER)


def _neighbours(held: Layout, index: int) -> dict[str, float]:
    steps, roles, count = held.run.steps, held.roles, len(held.roles)
    before = roles[index - 1] if index else None
    after = roles[index + 1] if index + 1 < count else None
    out: dict[str, float] = {}
    for role in _SHOWN:
        out[f"structure.after_{role}"] = before is role
        out[f"structure.before_{role}"] = after is role
    agent = steps[index].agent
    out["structure.same_before"] = index > 0 and steps[index - 1].agent == agent
    out["structure.same_after"] = after is not None and steps[index + 1].agent == agent
    out["structure.at_end"] = after is None
    out["structure.answered"] = held.answered
    named = after is not None and steps[index + 1].agent.lower() in held.said[index].low
    out["structure.names_next"] = named
    return out


def _layout(held: Layout, index: int, known: dict[str, float]) -> dict[str, float]:
    turns, turn, works = len(held.workers), known["role.turn"], index in held.turn
    left, directs = known["role.turns_left"], held.roles[index] is Role.ORCHESTRATOR
    short = 1 / (1 + math.exp(min(50.0, turns - _SHORT_TURNS)))
    last, first, second = works and left == 0, works and turn == 0, works and turn == 1
    new = works and turn > 0 and bool(known["role.new_agent"])
    early, late = math.exp(-turn / _DECAY), math.exp(-left / _DECAY)
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
        "layout.last_but_one": works and left == 1,
        "layout.new_agent": new,
        "layout.new_agent_late": new and left <= 1,
        "layout.last_turn_answered": last * held.answered,
        "layout.last_turn_cut": last * (not held.answered),
        "layout.log_candidates": math.log(len(held.candidates)),
        "layout.directs_after_last": directs and left < 0.5,
        "layout.directs_before_turn": directs
        and after < len(held.roles)
        and held.roles[after] is Role.WORKER,
        "layout.brief": index in held.brief,
        "layout.early": early if works else 0.0,
        "layout.late": late if works else 0.0,
        "layout.directs_early": 0.0 if works else early * edge,
        "layout.directs_late": 0.0 if works else late * edge,
        "layout.late_short": late * short if works else 0.0,
        "layout.early_long": early * (1 - short) if works else 0.0,
        "layout.directs_late_short": 0.0 if works else late * edge * short,
        "layout.stretch": _stretch(held, index),
    }


def _stretch(held: Layout, index: int) -> float:
    """Steps since another worker spoke."""
    agent = held.run.steps[index].agent
    for back, at in enumerate(range(index - 1, max(-1, index - 40), -1)):
        if held.roles[at] is Role.WORKER and held.run.steps[at].agent != agent:
            return back
    return min(index, 40)
