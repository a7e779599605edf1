"""Errors of the planning module: plans that are forbidden, impossible or wasteful."""

# ruff: noqa: ARG001  (the functions share their signatures)

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from agentguard_lab.textworld.agent import Agent, subject
from agentguard_lab.textworld.belief_state import OPPOSITE
from agentguard_lab.textworld.errors.base import Error
from agentguard_lab.textworld.planner import Intent, KeyPlanner

_INSIST = (3, 6, 12, 25)
"""Numbers of turns for which the agent keeps an impossible plan."""
_WASTE = (6, 10, 16, 30)


def _replan(agent: Agent) -> None:
    intent = KeyPlanner(agent.task).next(agent.memory)
    agent.intents = [intent] if intent else []


def _tidying(agent: Agent) -> Sequence[str]:
    return [i.args["object"] for i in agent.intents if i.tool == "close"]


def _leave_open(agent: Agent, name: str, rng: random.Random) -> None:
    agent.task = replace(agent.task, close_after=tuple(n for n in agent.task.close_after if n != name))
    _replan(agent)


def _processing(agent: Agent) -> Sequence[Intent]:
    return [intent for intent in agent.intents if intent.tool in ("cook", "cut")]


def _skip(agent: Agent, intent: Intent, rng: random.Random) -> None:
    agent.memory.given_up.add(subject(intent))
    _replan(agent)


def _other_heat(agent: Agent) -> Sequence[Intent]:
    memory = agent.memory
    local_appliances = [name for name, room in memory.appliances.items() if room == memory.here]
    return [
        replace(intent, args={**intent.args, "appliance": name})
        for intent in agent.intents
        if intent.tool == "cook"
        for name in local_appliances
        if name != intent.args["appliance"]
    ]


def _decide(agent: Agent, intent: Intent, rng: random.Random) -> None:
    agent.intents = [intent]


def _insist(agent: Agent, intent: Intent, rng: random.Random) -> None:
    agent.intents = [intent]
    agent.fixed = [intent] * rng.choice(_INSIST)


def _wrong_keys(agent: Agent) -> Sequence[Intent]:
    memory = agent.memory
    keys = [name for name in memory.carried if name.endswith("key")]
    doors = [exit_.door for exit_ in memory.rooms.get(memory.here, {}).values() if exit_.state == "locked"]
    return [
        Intent(tool="unlock", args={"object": door, "key": key})
        for door in doors
        if door
        for key in keys
        if key != memory.keys.get(door)
    ]


def _not_in_hand(agent: Agent) -> Sequence[Intent]:
    memory = agent.memory
    return [
        Intent(tool="put_on", args={"object": goal.item, "onto": goal.holder}, purpose="deliver")
        for goal in agent.task.deliveries
        if goal.item not in memory.carried and ("deliver", goal.item) not in memory.done
        and goal.room == memory.here
    ]  # fmt: skip


def _out_of_reach(agent: Agent) -> Sequence[Intent]:
    memory = agent.memory
    needed_items = sorted(agent.list_wanted() - {"cookbook"})
    closed = [
        n for n, (room, s) in memory.containers.items() if room == memory.here and s in ("closed", "unknown")
    ]
    return [
        Intent(tool="take", args={"object": item, "from": name}, purpose="fetch")
        for item in needed_items
        if item not in memory.things
        for name in closed
    ]


def _unready(agent: Agent) -> Sequence[Intent]:
    memory = agent.memory
    if not agent.task.cook or not memory.directions or ("prepare",) in memory.done:
        return []
    has_open_steps = any(step not in memory.done for step in memory.directions)
    return (
        [Intent(tool="prepare_meal", purpose="meal")]
        if has_open_steps and "cookbook" in memory.things
        else []
    )


def _searching(agent: Agent) -> Sequence[bool]:
    busy = any(i.tool in ("go", "take", "open", "put_on", "cook", "cut") for i in agent.intents)
    return [True] if busy and agent.turns > 2 and not agent.survey else []


def _survey_all(agent: Agent, option: bool, rng: random.Random) -> None:
    agent.survey = rng.choice(_WASTE)
    onward = agent.look_over()
    if onward:
        agent.intents = [onward]


def _there_and_back(agent: Agent) -> Sequence[str]:
    exits = agent.memory.rooms.get(agent.memory.here, {})
    busy = any(i.tool in ("go", "take", "put_on", "cook", "cut") for i in agent.intents)
    return [way for way, exit_ in exits.items() if exit_.to and exit_.to != agent.memory.here] if busy else []


def _wander(agent: Agent, way: str, rng: random.Random) -> None:
    outward = Intent(tool="go", args={"direction": way}, purpose="back")
    homeward = Intent(tool="go", args={"direction": OPPOSITE[way]}, purpose="back")
    agent.intents = [outward]
    agent.fixed = [homeward, outward] * (rng.choice(_WASTE) // 2) + [homeward]


_C, _I, _W = "planning.constraint_ignorance", "planning.impossible_action", "planning.inefficient_plan"
ERRORS = (
    Error(
        code=_C,
        variant="rule",
        reason="It plans on without closing what the task says must be closed.",
        options=_tidying,
        apply=_leave_open,
    ),
    Error(
        code=_C,
        variant="skipped",
        reason="It leaves out a direction of the recipe, which is to be followed as it stands.",
        options=_processing,
        apply=_skip,
    ),
    Error(
        code=_C,
        variant="appliance",
        reason="It plans to use another appliance than the recipe demands.",
        options=_other_heat,
        apply=_decide,
    ),
    Error(
        code=_I,
        variant="key",
        reason="It plans on a key that does not fit, and insists.",
        options=_wrong_keys,
        apply=_insist,
    ),
    Error(
        code=_I,
        variant="not_held",
        reason="It plans to put down a thing that it does not have, and insists.",
        options=_not_in_hand,
        apply=_insist,
    ),
    Error(
        code=_I,
        variant="not_reached",
        reason="It plans to take a thing out of a container that it never opened, and insists.",
        options=_out_of_reach,
        apply=_insist,
    ),
    Error(
        code=_I,
        variant="unready",
        reason="It plans to prepare the meal before its directions are done, and insists.",
        options=_unready,
        apply=_insist,
    ),
    Error(
        code=_W,
        variant="survey",
        reason="It puts a survey of the whole house before the task.",
        options=_searching,
        apply=_survey_all,
    ),
    Error(
        code=_W,
        variant="to_and_fro",
        reason="It plans to walk to and fro before going on.",
        options=_there_and_back,
        apply=_wander,
    ),
)
