"""Interpretation of the result of an action, and its effect on the agent's beliefs.

Judgement and belief are separate functions. An error of judgement is therefore a wrong `ActionOutcome`, and
all its consequences follow from it.
"""

# ruff: noqa: ARG001  (the changes of belief share one signature)

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentguard_lab.textworld.belief_state import BelievedPlace, Memory
from agentguard_lab.textworld.observation_parser import ParsedObservation, parse_recipe, split_names
from agentguard_lab.textworld.planner import VERB_APPLIANCE, Intent

APPLIANCE_VERB = {appliance: verb for verb, appliance in VERB_APPLIANCE.items()}
REFUSALS = ("refused", "tool_error", "silent", "need_key", "shut", "holder_closed")
_DONE = {
    "open": "opened", "close": "closed", "unlock": "unlocked", "take": "took", "put_on": "delivered",
    "insert": "delivered", "cook": "processed", "cut": "processed", "prepare_meal": "prepared",
    "inventory": "inventory", "examine": "examined", "eat": "eaten", "go": "walked", "look": "looked",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOutcome:
    """One result as the agent judges it.

    Attributes:
        kind: ``arrived``, one of the past tenses of a tool, or one of `REFUSALS`.
        observation: the parsed observation.
        target: the thing, door or holder of the action.
        names: things that became visible, or the required key.
    """

    kind: str
    observation: ParsedObservation
    target: str = ""
    names: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Return whether the action had no effect."""
        return self.kind in REFUSALS


def build_success(intent: Intent, observation: ParsedObservation) -> ActionOutcome:
    """Return the successful outcome of an intent."""
    return ActionOutcome(
        kind=_DONE[intent.tool], observation=observation, target=intent.args.get("object", "")
    )


def judge_result(intent: Intent, observation: ParsedObservation) -> ActionOutcome:
    """Return the right judgement of a result."""
    target = intent.args.get("object", "")
    if not observation.text:
        return ActionOutcome(kind="silent", observation=observation, target=target)
    if observation.room:
        return ActionOutcome(
            kind="arrived", observation=observation, target=observation.room, names=tuple(observation.things)
        )
    if observation.text.startswith("Error"):
        return ActionOutcome(kind="tool_error", observation=observation, target=target)
    if "Ingredients:" in observation.text:
        return ActionOutcome(kind="recipe", observation=observation, target=target)
    if intent.tool == "examine" and not observation.text.startswith("You can't"):
        return ActionOutcome(kind="examined", observation=observation, target=target)
    if observation.refused:
        return _refusal(intent, observation, target)
    if intent.tool == "inventory":
        _, _, items = observation.text.partition("You are carrying: ")
        return ActionOutcome(kind="inventory", observation=observation, names=split_names(items.rstrip(".")))
    if intent.tool == "open":
        return ActionOutcome(
            kind="opened", observation=observation, target=target, names=observation.revealed
        )
    return build_success(intent, observation)


def _refusal(intent: Intent, observation: ParsedObservation, target: str) -> ActionOutcome:
    if match := re.match(r"You have to unlock the (.+) with the (.+) first", observation.text):
        return ActionOutcome(
            kind="need_key", observation=observation, target=match.group(1), names=(match.group(2),)
        )
    if match := re.match(r"You have to open the (.+) first", observation.text):
        return ActionOutcome(kind="shut", observation=observation, target=match.group(1))
    if "is closed" in observation.text and intent.tool == "insert":
        return ActionOutcome(kind="holder_closed", observation=observation, target=intent.args["into"])
    return ActionOutcome(kind="refused", observation=observation, target=target)


def update_beliefs(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    """Update the beliefs with an outcome."""
    change = _CHANGES.get(outcome.kind)
    if change is not None:
        change(memory, intent, outcome)


def _arrived(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    old = memory.here
    memory.add_room(outcome.observation)
    for name in [name for name, place in memory.things.items() if name in memory.carried]:
        del memory.things[name]
    if intent.tool == "go" and old and old != memory.here and intent.args["direction"] in memory.rooms[old]:
        memory.connect_rooms(intent.args["direction"], old)


def _opened(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    target = outcome.target
    if target in memory.containers:
        memory.containers[target] = (memory.here, "open")
        for name in outcome.names:
            memory.things[name] = BelievedPlace(memory.here, target)
    for side in memory.find_door_sides(target):
        side.state = "open"


def _took(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    memory.take(outcome.target)


def _unlocked(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    for side in memory.find_door_sides(outcome.target):
        side.state = "shut"


def _closed(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    if outcome.target in memory.containers:
        # Not "closed": the search would open it again, although its content is known.
        memory.containers[outcome.target] = (memory.containers[outcome.target][0], "shut")


def _delivered(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    if outcome.target in memory.carried:
        memory.carried.remove(outcome.target)
    memory.done.add(("deliver", outcome.target))


def _processed(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    verb = intent.args.get("how") or APPLIANCE_VERB.get(intent.args.get("appliance", ""), "")
    memory.done.add((verb, outcome.target))


def _prepared(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    memory.done.add(("prepare",))


def _eaten(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    memory.done.add(("eat",))


def _recipe(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    memory.ingredients, memory.directions = parse_recipe(outcome.observation.text)


def _inventory(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    items = list(outcome.names)
    memory.carried = items
    memory.done = {fact for fact in memory.done if fact[0] != "deliver" or fact[1] not in items}


def _need_key(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    memory.keys[outcome.target] = outcome.names[0]
    for side in memory.find_door_sides(outcome.target):
        side.state = "locked"


def _shut(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    for side in memory.find_door_sides(outcome.target):
        side.state = "shut"


def _holder_closed(memory: Memory, intent: Intent, outcome: ActionOutcome) -> None:
    memory.containers[outcome.target] = (memory.here, "closed")


_CHANGES: dict[str, Callable[[Memory, Intent, ActionOutcome], None]] = {
    "arrived": _arrived,
    "opened": _opened,
    "took": _took,
    "unlocked": _unlocked,
    "closed": _closed,
    "delivered": _delivered,
    "processed": _processed,
    "prepared": _prepared,
    "eaten": _eaten,
    "recipe": _recipe,
    "inventory": _inventory,
    "need_key": _need_key,
    "shut": _shut,
    "holder_closed": _holder_closed,
}
