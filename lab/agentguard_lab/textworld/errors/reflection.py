"""Errors of the reflection module: wrong judgements of results, causes and progress."""

# ruff: noqa: ARG001  (the functions share their signatures)

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from agentguard_lab.textworld.agent import Agent
from agentguard_lab.textworld.errors.base import Error
from agentguard_lab.textworld.planner import KeyPlanner
from agentguard_lab.textworld.result_interpretation import build_success

_EFFECTS = ("take", "put_on", "insert", "unlock", "open", "close", "cook", "cut", "prepare_meal")


def _refusals(agent: Agent) -> Sequence[int]:
    pairs = enumerate(agent.outcomes)
    return [i for i, (intent, outcome) in pairs if outcome.refused and intent.tool in _EFFECTS]


def _take_for_success(agent: Agent, place: int, rng: random.Random) -> None:
    intent, outcome = agent.outcomes[place]
    agent.outcomes[place] = (intent, build_success(intent, outcome.observation))


def _findings(agent: Agent) -> Sequence[int]:
    needed_items = agent.list_wanted()
    indexed_outcomes = enumerate(agent.outcomes)
    return [
        i
        for i, (_, outcome) in indexed_outcomes
        if outcome.kind in ("opened", "arrived") and needed_items & set(outcome.names)
    ]


def _overlook(agent: Agent, place: int, rng: random.Random) -> None:
    intent, outcome = agent.outcomes[place]
    needed_items = agent.list_wanted()
    things = {name: holder for name, holder in outcome.observation.things.items() if name not in needed_items}
    observation = replace(outcome.observation, things=things)
    names = tuple(name for name in outcome.names if name not in needed_items)
    agent.outcomes[place] = (intent, replace(outcome, observation=observation, names=names))


def _successes(agent: Agent) -> Sequence[int]:
    kinds = ("took", "processed", "prepared", "delivered", "unlocked")
    return [i for i, (_, outcome) in enumerate(agent.outcomes) if outcome.kind in kinds]


def _take_for_failure(agent: Agent, place: int, rng: random.Random) -> None:
    intent, outcome = agent.outcomes[place]
    agent.outcomes[place] = (intent, replace(outcome, kind="refused"))


def _shut_doors(agent: Agent) -> Sequence[tuple[int, str]]:
    options = []
    for index, (_, outcome) in enumerate(agent.outcomes):
        if outcome.kind == "shut":
            options.append((index, f"{outcome.target.split()[0]} key"))
        elif outcome.kind == "need_key":
            others = [name for name in (*agent.memory.carried, *agent.memory.things) if name.endswith("key")]
            options += [(index, name) for name in others if name != outcome.names[0]]
    return options


def _blame_lock(agent: Agent, option: tuple[int, str], rng: random.Random) -> None:
    intent, outcome = agent.outcomes[option[0]]
    agent.outcomes[option[0]] = (intent, replace(outcome, kind="need_key", names=(option[1],)))


def _all_refusals(agent: Agent) -> Sequence[int]:
    return [i for i, (_, outcome) in enumerate(agent.outcomes) if outcome.refused]


def _blame_thing(agent: Agent, place: int, rng: random.Random) -> None:
    intent, outcome = agent.outcomes[place]
    # Use the wording and belief of giving up after three attempts.
    agent.give_up(intent)
    if outcome.kind in ("need_key", "shut"):
        agent.memory.given_up.add(outcome.target)


def _unfinished(agent: Agent) -> Sequence[tuple[str, ...]]:
    memory = agent.memory
    carried_items = [goal.item for goal in agent.task.deliveries if goal.item in memory.carried]
    steps = [
        direction
        for direction in memory.directions
        if direction not in memory.done and direction[1] in memory.carried
    ]
    return [*steps, *(("deliver", item) for item in carried_items)]


def _count_as_done(agent: Agent, fact: tuple[str, ...], rng: random.Random) -> None:
    agent.memory.done.add(fact)


def _half_way(agent: Agent) -> Sequence[bool]:
    memory, task = agent.memory, agent.task
    if KeyPlanner(task).complete(memory):
        return []
    if task.cook:
        return (
            [True]
            if ("prepare",) in memory.done or any(o.kind == "prepared" for _, o in agent.outcomes)
            else []
        )
    open_goals = [goal for goal in task.deliveries if ("deliver", goal.item) not in memory.done]
    return [True] if len(open_goals) == 1 and len(task.deliveries) > 1 else []


def _call_it_done(agent: Agent, option: bool, rng: random.Random) -> None:
    agent.memory.done |= {("deliver", goal.item) for goal in agent.task.deliveries}
    agent.memory.done |= {("prepare",), ("eat",)} if agent.task.cook else set()
    agent.remarks.append(agent.words.render_remark("ready"))


def _unopened(agent: Agent) -> Sequence[str]:
    memory = agent.memory
    return [name for name, (_, state) in memory.containers.items() if state in ("closed", "unknown")]


def _claim_searched(agent: Agent, name: str, rng: random.Random) -> None:
    agent.memory.containers[name] = (agent.memory.containers[name][0], "open")
    agent.remarks.append(agent.words.render_remark("opened_empty", target=name))


def _untried(agent: Agent) -> Sequence[str]:
    return agent.memory.list_untried_exits(agent.memory.here)


def _claim_dead_end(agent: Agent, way: str, rng: random.Random) -> None:
    agent.memory.rooms[agent.memory.here][way].to = agent.memory.here
    agent.remarks.append(agent.words.render_remark("dead_end", way=way))


_O, _C = "reflection.outcome_misinterpretation", "reflection.causal_misattribution"
_P, _H = "reflection.progress_misjudge", "reflection.hallucination"
ERRORS = (
    Error(
        code=_O,
        variant="refusal_as_success",
        reason="It takes a refused action for one that worked.",
        options=_refusals,
        apply=_take_for_success,
    ),
    Error(
        code=_O,
        variant="overlooked",
        reason="The result shows what it is looking for, and it concludes that it is not there.",
        options=_findings,
        apply=_overlook,
    ),
    Error(
        code=_O,
        variant="success_as_refusal",
        reason="It takes an action that worked for one that failed.",
        options=_successes,
        apply=_take_for_failure,
    ),
    Error(
        code=_C,
        variant="lock",
        reason="It puts the obstacle down to a lock and a key that it is not due to.",
        options=_shut_doors,
        apply=_blame_lock,
    ),
    Error(
        code=_C,
        variant="thing",
        reason="It puts a passing failure down to the thing itself, and gives that up.",
        options=_all_refusals,
        apply=_blame_thing,
    ),
    Error(
        code=_P,
        variant="part",
        reason="It counts a part of the task as done that is not.",
        options=_unfinished,
        apply=_count_as_done,
    ),
    Error(
        code=_P,
        variant="whole",
        reason="It counts the whole task as done while a part is left.",
        options=_half_way,
        apply=_call_it_done,
    ),
    Error(
        code=_H,
        variant="container",
        reason="It judges the contents of a container that it never opened.",
        options=_unopened,
        apply=_claim_searched,
    ),
    Error(
        code=_H,
        variant="way",
        reason="It judges a way that it never went.",
        options=_untried,
        apply=_claim_dead_end,
    ),
)
