"""Errors of the memory module: incomplete, missing or invented beliefs."""

# ruff: noqa: ARG001  (the functions share their signatures)

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from agentguard_lab.textworld.agent import Agent
from agentguard_lab.textworld.belief_state import BelievedPlace
from agentguard_lab.textworld.errors.base import Error
from agentguard_lab.textworld.planner import Deliver

_OTHER_VERB = {
    "chop": "slice",
    "slice": "dice",
    "dice": "chop",
    "fry": "roast",
    "roast": "fry",
    "grill": "fry",
}


def _undone(agent: Agent) -> Sequence[tuple[str, str]]:
    memory = agent.memory
    return [step for step in memory.directions if step not in memory.done]


def _drop_direction(agent: Agent, step: tuple[str, str], rng: random.Random) -> None:
    memory = agent.memory
    memory.directions = tuple(one for one in memory.directions if one != step)


def _merged_goals(agent: Agent) -> Sequence[tuple[Deliver, Deliver]]:
    open_goals = [goal for goal in agent.task.deliveries if ("deliver", goal.item) not in agent.memory.done]
    return [
        (one, other) for one in open_goals for other in agent.task.deliveries if one.holder != other.holder
    ]


def _merge(agent: Agent, pair: tuple[Deliver, Deliver], rng: random.Random) -> None:
    one, other = pair
    merged = replace(one, holder=other.holder, room=other.room, how=other.how)
    goals = tuple(merged if goal == one else goal for goal in agent.task.deliveries)
    agent.task = replace(agent.task, deliveries=goals)


def _open_rules(agent: Agent) -> Sequence[str]:
    containers = agent.memory.containers
    return [name for name in agent.task.close_after if containers.get(name, ("", ""))[1] == "open"]


def _drop_rule(agent: Agent, name: str, rng: random.Random) -> None:
    agent.task = replace(agent.task, close_after=tuple(n for n in agent.task.close_after if n != name))


def _list_known_wanted_objects(agent: Agent) -> Sequence[str]:
    return sorted(name for name in agent.list_wanted() if name in agent.memory.things)


def _forget_place(agent: Agent, name: str, rng: random.Random) -> None:
    del agent.memory.things[name]


def _has_map(agent: Agent) -> Sequence[bool]:
    return [True] if len(agent.memory.rooms) > 2 and not agent.amnesia else []


def _forget_map(agent: Agent, option: bool, rng: random.Random) -> None:
    agent.amnesia = True


def _done(agent: Agent) -> Sequence[tuple[str, ...]]:
    return sorted(fact for fact in agent.memory.done if len(fact) == 2)


def _forget_done(agent: Agent, fact: tuple[str, ...], rng: random.Random) -> None:
    agent.memory.done.discard(fact)


def _believe_carried(agent: Agent, name: str, rng: random.Random) -> None:
    agent.memory.take(name)


def _wrong_places(agent: Agent) -> Sequence[tuple[str, BelievedPlace]]:
    memory = agent.memory
    holders = [BelievedPlace(room, name) for name, (room, _) in memory.containers.items()]
    holders += [place for place in memory.things.values() if place.holder]
    spots = {(place.room, place.holder): place for place in holders if place.room != memory.here}
    needed_items = sorted(agent.list_wanted() - {"cookbook"})
    return [
        (name, spot) for name in needed_items for spot in spots.values() if spot != memory.things.get(name)
    ]


def _misplace(agent: Agent, option: tuple[str, BelievedPlace], rng: random.Random) -> None:
    agent.memory.things[option[0]] = replace(option[1])


def _claimable(agent: Agent) -> Sequence[tuple[str, ...]]:
    carried_items = [goal.item for goal in agent.task.deliveries if goal.item in agent.memory.carried]
    return [*_undone(agent), *(("deliver", item) for item in carried_items)]


def _claim_done(agent: Agent, fact: tuple[str, ...], rng: random.Random) -> None:
    agent.memory.done.add(fact)
    if fact[0] == "deliver":
        agent.memory.carried.remove(fact[1])


def _change_recipe(agent: Agent, step: tuple[str, str], rng: random.Random) -> None:
    memory = agent.memory
    changed = (_OTHER_VERB[step[0]], step[1])
    memory.directions = tuple(changed if one == step else one for one in memory.directions)


_S, _F, _H = "memory.over_simplification", "memory.retrieval_failure", "memory.hallucination"
ERRORS = (
    Error(
        code=_S,
        variant="direction",
        reason="Its notes of the recipe lack a direction that it had read.",
        options=_undone,
        apply=_drop_direction,
    ),
    Error(
        code=_S,
        variant="places",
        reason="It remembers the same place for two things that go to different ones.",
        options=_merged_goals,
        apply=_merge,
    ),
    Error(
        code=_S,
        variant="rule",
        reason="It no longer remembers what has to be closed.",
        options=_open_rules,
        apply=_drop_rule,
    ),
    Error(
        code=_F,
        variant="place",
        reason="It has seen the thing, and searches for it as if it had not.",
        options=_list_known_wanted_objects,
        apply=_forget_place,
    ),
    Error(
        code=_F,
        variant="map",
        reason="It no longer recalls which way leads where, and takes known ways for new.",
        options=_has_map,
        apply=_forget_map,
    ),
    Error(
        code=_F,
        variant="done",
        reason="It does not recall that this is done, and sets out to do it again.",
        options=_done,
        apply=_forget_done,
    ),
    Error(
        code=_H,
        variant="carried",
        reason="It remembers taking a thing that it only saw.",
        options=_list_known_wanted_objects,
        apply=_believe_carried,
    ),
    Error(
        code=_H,
        variant="place",
        reason="It remembers seeing the thing where it never saw it.",
        options=_wrong_places,
        apply=_misplace,
    ),
    Error(
        code=_H,
        variant="done",
        reason="It remembers doing what it never did.",
        options=_claimable,
        apply=_claim_done,
    ),
    Error(
        code=_H,
        variant="recipe",
        reason="It remembers a direction that the recipe does not have.",
        options=_undone,
        apply=_change_recipe,
    ),
)
