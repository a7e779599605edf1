"""Errors of the action module: the call differs from the plan, or cannot be executed."""

# ruff: noqa: ARG001  (the functions share their signatures)

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from agentguard_lab.textworld.agent import Agent, Habit
from agentguard_lab.textworld.errors.base import Error
from agentguard_lab.textworld.malformed_calls import malform_call
from agentguard_lab.textworld.turn_text import encode_call

_CUTS = ("chop", "slice", "dice")


def _sound(agent: Agent, *names: str) -> dict[str, Any] | None:
    """Return the arguments of the turn's only call if it is to one of the tools and matches its intent."""
    if len(agent.calls) != 1 or agent.calls[0][0] not in names:
        return None
    return agent.intents[0].args if agent.calls[0] == encode_call(agent.intents[0]) else None


def _any_call(agent: Agent) -> Sequence[int]:
    # A failed look or inventory check has no consequences.
    idle = ("look", "inventory", "examine")
    call_intents = zip(agent.calls, agent.intents, strict=True)
    return [
        i
        for i, (call, intent) in enumerate(call_intents)
        if call[0] not in idle and call == encode_call(intent)
    ]


def _habit(kind: str) -> Any:
    def apply(agent: Agent, place: int, rng: random.Random) -> None:
        name = agent.calls[place][0]
        agent.calls[place] = malform_call(agent.calls[place], kind, rng)
        agent.habits.append(Habit(tool=name, kind=kind, left=rng.choice((2, 4, 8, 99))))

    return apply


def _other_ways(agent: Agent) -> Sequence[str]:
    planned = _sound(agent, "go")
    if planned is None:
        return []
    exits = agent.memory.rooms.get(agent.memory.here, {})
    return [way for way, exit_ in exits.items() if way != planned["direction"] and exit_.state == "open"]


def _walk(agent: Agent, way: str, rng: random.Random) -> None:
    agent.calls = [("go", json.dumps({"direction": way}))]


def _other_holders(agent: Agent) -> Sequence[tuple[str, str]]:
    planned, memory = _sound(agent, "put_on"), agent.memory
    if planned is None:
        return []
    local_holders = {
        place.holder for place in memory.things.values() if place.room == memory.here and place.holder
    }
    open_containers = {
        name for name, (room, state) in memory.containers.items() if room == memory.here and state == "open"
    }
    supporters = sorted(local_holders - set(memory.containers) - {planned["onto"]})
    return [("put_on", name) for name in supporters] + [("insert", name) for name in sorted(open_containers)]


def _put(agent: Agent, option: tuple[str, str], rng: random.Random) -> None:
    tool, holder = option
    item = json.loads(agent.calls[0][1])["object"]
    agent.calls = [(tool, json.dumps({"object": item, "onto" if tool == "put_on" else "into": holder}))]


def _other_things(agent: Agent) -> Sequence[tuple[str, str | None]]:
    planned, memory = _sound(agent, "take"), agent.memory
    if planned is None:
        return []
    return [
        (name, place.holder)
        for name, place in memory.things.items()
        if place.room == memory.here and name not in (planned["object"], "cookbook")
    ]


def _take(agent: Agent, option: tuple[str, str | None], rng: random.Random) -> None:
    name, holder = option
    agent.calls = [("take", json.dumps({"object": name, **({"from": holder} if holder else {})}))]


def _other_heat(agent: Agent) -> Sequence[tuple[str, str]]:
    planned, memory = _sound(agent, "cook", "cut"), agent.memory
    if planned is None:
        return []
    if agent.calls[0][0] == "cut":
        return [("how", how) for how in _CUTS if how != planned["how"]]
    local_appliances = [name for name, room in memory.appliances.items() if room == memory.here]
    return [("appliance", name) for name in local_appliances if name != planned["appliance"]]


def _process(agent: Agent, option: tuple[str, str], rng: random.Random) -> None:
    name, raw = agent.calls[0]
    agent.calls = [(name, json.dumps({**json.loads(raw), option[0]: option[1]}))]


_M = "action.misalignment"
ERRORS = (
    Error(
        code=_M,
        variant="way",
        reason="Its call walks another way than its plan says.",
        options=_other_ways,
        apply=_walk,
    ),
    Error(
        code=_M,
        variant="holder",
        reason="Its call puts the thing elsewhere than its plan says.",
        options=_other_holders,
        apply=_put,
    ),
    Error(
        code=_M,
        variant="thing",
        reason="Its call takes another thing than its plan says.",
        options=_other_things,
        apply=_take,
    ),
    Error(
        code=_M,
        variant="processing",
        reason="Its call processes the food in another way than its plan says.",
        options=_other_heat,
        apply=_process,
    ),
    Error(
        code="action.invalid_action",
        variant="tool",
        reason="It calls a tool that does not exist, and holds on to it.",
        options=_any_call,
        apply=_habit("tool"),
    ),
    Error(
        code="action.format_error",
        variant="json",
        reason="It writes the arguments of a tool in a form that does not parse, and goes on so.",
        options=_any_call,
        apply=_habit("json"),
    ),
    Error(
        code="action.parameter_error",
        variant="names",
        reason="It calls a tool with parameters that the tool does not have, and goes on so.",
        options=_any_call,
        apply=_habit("names"),
    ),
    Error(
        code="action.parameter_error",
        variant="value",
        reason="It calls a tool with unsuitable values, and goes on so.",
        options=_any_call,
        apply=_habit("value"),
    ),
)
