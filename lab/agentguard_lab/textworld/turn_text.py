"""Wording of a turn: separate texts for memory, reflection, plan and call.

Each turn draws the facts, their order and the phrases. All content comes from beliefs and outcomes, whether
they are right or wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence

from agentguard_lab.textworld.belief_state import Memory
from agentguard_lab.textworld.grammar import draw
from agentguard_lab.textworld.phrases import ACTION, MEMORY, PLANNING, REFLECTION
from agentguard_lab.textworld.planner import Intent, KeyPlanner, Task
from agentguard_lab.textworld.result_interpretation import ActionOutcome


def format_list(items: Iterable[str]) -> str:
    """Return ``a, b and c``."""
    names = list(items)
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


class Words:
    """Wording of one turn.

    Args:
        rng: random numbers of this turn only, so that its wording does not depend on other turns.
        terse: brevity, from 0 (all facts) to 1 (few facts).
    """

    def __init__(self, rng: random.Random, terse: float) -> None:
        self._rng, self._terse = rng, terse

    def render_memory(self, memory: Memory, task: Task) -> str:
        """Return the text of the memory module."""
        sentences = [self._say(MEMORY, "here", room=memory.here)] if memory.here else []
        if memory.carried:
            sentences.append(self._say(MEMORY, "carry", items=format_list(_the(memory.carried))))
        elif self._rng.random() < 0.5:
            sentences.append(self._say(MEMORY, "empty"))
        recalled = [text for text in self._recalled(memory, task) if text]
        self._rng.shuffle(recalled)
        sentences += recalled[: max(1, round((1 - self._terse) * 4 * self._rng.random() + 0.6))]
        if self._rng.random() < 0.3:
            self._rng.shuffle(sentences)
        return " ".join(sentences)

    def render_reflection(self, said: Sequence[str], memory: Memory, task: Task) -> str:
        """Return the meaning of the last results, and sometimes the progress of the task."""
        sentences = list(said)
        if self._rng.random() < 0.35:
            done_count, part_count = count_parts(memory, task)
            if part_count and done_count < part_count:
                sentences.append(self._say(REFLECTION, "progress", done=done_count, all=part_count))
        return " ".join(sentences)

    def render_outcome(self, outcome: ActionOutcome, memory: Memory, wanted: set[str]) -> str:
        """Return one or two sentences on an outcome, before it changes the beliefs."""
        observation, words = (
            outcome.observation,
            {"target": outcome.target, "says": outcome.observation.first_line},
        )
        if outcome.kind == "arrived":
            return self._arrived(outcome, memory, wanted)
        if outcome.kind == "opened" and (outcome.names or outcome.target in memory.containers):
            return self._opened(outcome, wanted)
        if outcome.kind == "need_key":
            words["key"] = outcome.names[0]
        elif outcome.kind == "recipe":
            steps = [
                line for line in observation.text.partition("Directions:")[2].splitlines() if line.strip()
            ]
            items = [
                line for line in observation.text.partition("Ingredients:")[2].splitlines() if line.strip()
            ]
            words["steps"] = format_list(line.strip() for line in steps)
            words["items"] = format_list(line.strip() for line in items[: len(items) - len(steps) - 1])
        deck = outcome.kind if outcome.kind in REFLECTION else "inventory"
        return self._say(REFLECTION, deck, **words)

    def render_remark(self, deck: str, **words: object) -> str:
        """Return one sentence of the reflection."""
        return self._say(REFLECTION, deck, **words)

    def render_planning(self, intent: Intent | None, *, complete: bool) -> str:
        """Return the text of the next intent and its purpose."""
        if intent is None:
            return self._say(PLANNING, "claim" if complete else "stuck")
        goal, _, rest = intent.purpose.partition(" ")
        words = {"rest": rest, "way": intent.args.get("direction", ""), "object": "meal", **intent.args}
        words["place"] = intent.args.get("onto") or intent.args.get("into") or ""
        tool = "put" if intent.tool in ("put_on", "insert") else intent.tool
        deck = f"{tool}:{goal}"
        return self._say(PLANNING, deck if deck in PLANNING else tool, **words)

    def render_start(self) -> str:
        """Return the plan of the first turn."""
        return self._say(PLANNING, "start")

    def render_action(self, calls: Sequence[tuple[str, str]]) -> str:
        """Return the text of the calls."""
        if not calls:
            return self._say(ACTION, "none")
        return self._say(ACTION, "call", call="; ".join(f"{name} {raw}" for name, raw in calls))

    def _say(self, decks: Mapping[str, str], deck: str, **words: object) -> str:
        text = draw(decks[deck], self._rng).format(**words).strip()
        return text[:1].upper() + text[1:]

    def _arrived(self, outcome: ActionOutcome, memory: Memory, wanted: set[str]) -> str:
        observation, room = outcome.observation, outcome.target
        sentences = [
            self._say(REFLECTION, "arrived_new", room=room, sight=_sight(outcome))
            if room not in memory.rooms
            else self._say(REFLECTION, "arrived_back", room=room)
        ]
        needed_items = [name for name in outcome.names if name in wanted and name in observation.things]
        if needed_items:
            holder = observation.things[needed_items[0]]
            location = f"on the {holder}" if holder else "on the floor"
            sentences.append(
                self._say(REFLECTION, "spotted", items=format_list(_the(needed_items)), where=location)
            )
        elif room not in memory.rooms and self._rng.random() < 0.6:
            sentences.append(self._say(REFLECTION, "nothing_here"))
        return " ".join(sentences)

    def _opened(self, outcome: ActionOutcome, wanted: set[str]) -> str:
        needed_items = [name for name in outcome.names if name in wanted]
        if needed_items:
            return self._say(
                REFLECTION, "found_wanted", target=outcome.target, found=format_list(_the(needed_items))
            )
        if outcome.names:
            return self._say(
                REFLECTION, "found_other", target=outcome.target, inside=format_list(_the(outcome.names))
            )
        return self._say(REFLECTION, "opened_empty", target=outcome.target)

    def _recalled(self, memory: Memory, task: Task) -> Iterable[str]:
        needed_items = list_wanted_names(memory, task)
        places = sorted(name for name in needed_items if name in memory.things)
        for name in places[:2]:
            place = memory.things[name]
            location = f"in the {place.room}"
            if place.holder:
                location = (
                    f"{'in' if place.holder in memory.containers else 'on'} the {place.holder} {location}"
                )
            yield self._say(MEMORY, "known", item=name, where=location)
        unseen = sorted(name for name in needed_items if name not in memory.things)
        if unseen:
            yield self._say(MEMORY, "unseen", items=format_list(_the(unseen)))
        if len(memory.rooms) > 1:
            yield self._say(MEMORY, "rooms", rooms=format_list(_the(memory.rooms)))
        open_containers = [name for name, (_, state) in memory.containers.items() if state == "open"]
        if open_containers:
            yield self._say(MEMORY, "opened", items=format_list(_the(open_containers)))
        for door, key in memory.keys.items():
            if any(side.state == "locked" for side in memory.find_door_sides(door)):
                yield self._say(MEMORY, "keys", door=door, key=key)
        yield from self._recalled_task(memory, task)

    def _recalled_task(self, memory: Memory, task: Task) -> Iterable[str]:
        remaining = list_remaining_parts(memory, task)
        if remaining:
            yield self._say(MEMORY, "left", todo=format_list(remaining[:3]))
        completed = describe_completed_tasks(memory)
        if completed:
            yield self._say(MEMORY, "finished", done=format_list(completed[-3:]))
        for name in task.close_after:
            yield self._say(MEMORY, "rule", name=name)
        if memory.directions:
            steps = format_list(f"{verb} the {item}" for verb, item in memory.directions)
            yield self._say(MEMORY, "recipe", steps=steps)


def list_wanted_names(memory: Memory, task: Task) -> set[str]:
    """Return the names of things that the agent has a reason to look for."""
    names = {goal.item for goal in task.deliveries if ("deliver", goal.item) not in memory.done}
    names |= set(memory.ingredients) if ("prepare",) not in memory.done else set()
    names |= {
        key
        for door, key in memory.keys.items()
        if any(s.state == "locked" for s in memory.find_door_sides(door))
    }
    if any(step[0] in ("chop", "slice", "dice") and step not in memory.done for step in memory.directions):
        names.add("knife")
    if task.cook and not memory.ingredients:
        names.add("cookbook")
    return names - set(memory.carried)


def count_parts(memory: Memory, task: Task) -> tuple[int, int]:
    """Return the number of completed parts of the task and of all parts, as the agent believes."""
    if task.cook:
        if not memory.ingredients:
            return 0, 0
        parts = {*memory.directions, ("prepare",), ("eat",)}
        is_prepared = ("prepare",) in memory.done
        ingredient_count = sum(is_prepared or item in memory.carried for item in memory.ingredients)
        return ingredient_count + len(parts & memory.done), len(parts) + len(memory.ingredients)
    done_count = sum(("deliver", goal.item) in memory.done for goal in task.deliveries)
    return done_count, len(task.deliveries)


def list_remaining_parts(memory: Memory, task: Task) -> list[str]:
    """Return descriptions of the remaining parts of the task."""
    if KeyPlanner(task).complete(memory):
        return []
    if not task.cook:
        open_goals = [goal for goal in task.deliveries if ("deliver", goal.item) not in memory.done]
        return [f"the {g.item} to the {g.holder} in the {g.room}" for g in open_goals]
    if not memory.ingredients:
        return ["read the cookbook"]
    if ("prepare",) in memory.done:
        return ["eat the meal"]
    left_out = [f"get the {item}" for item in memory.ingredients if item not in memory.carried]
    left_out += [f"{verb} the {item}" for verb, item in memory.directions if (verb, item) not in memory.done]
    return [*left_out, "make the meal"]


def describe_completed_tasks(memory: Memory) -> list[str]:
    """Return descriptions of the completed parts of the task, in a fixed order."""
    names = {"deliver": "the {0} is delivered", "prepare": "the meal is prepared", "eat": "the meal is eaten"}
    out = []
    for fact in sorted(memory.done):
        text = names.get(fact[0], "{1} the {0}")
        out.append(text.format(fact[-1], fact[0]))
    return out


def encode_call(intent: Intent) -> tuple[str, str]:
    """Return the call of an intent: name of the tool, and arguments as JSON text."""
    return intent.tool, json.dumps(intent.args)


def _the(names: Iterable[str]) -> list[str]:
    return [f"the {name}" for name in names]


def _sight(outcome: ActionOutcome) -> str:
    observation = outcome.observation
    parts = [f"a {name}" for name in (*observation.containers, *observation.appliances)][:3]
    doors = [f"a {state} {door} to the {way}" for way, (door, state) in observation.exits.items() if door]
    open_exits = [way for way, (door, _) in observation.exits.items() if not door]
    if open_exits:
        doors.append(f"a way out to the {format_list(open_exits)}")
    return format_list(parts + doors) or "nothing much"
