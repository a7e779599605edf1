"""The agent's loop: read the tool results, think, act."""

# ruff: noqa: ARG002  (the handlers of outcomes share one signature)

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agentguard_lab.textworld.belief_state import BelievedPlace, Memory
from agentguard_lab.textworld.observation_parser import (
    ParsedObservation,
    parse_observation,
    parse_recipe,
    split_names,
)
from agentguard_lab.textworld.planner import GoalPlanner, Intent, Task

from examples.textworld_agent import account
from examples.textworld_agent.faults import Fault
from examples.textworld_agent.voice import Voice, join_items

Call = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant message: its text and its tool calls; no calls ends the run."""

    text: str
    calls: tuple[Call, ...] = ()


@dataclass(slots=True)
class Agent:
    """Memory, reflection, plan and action; ``fault`` may cause one error in one of them."""

    task: Task
    voice: Voice
    fault: Fault
    memory: Memory = field(default_factory=Memory)
    thoughts: list[str] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    turns: int = 0
    ended: str = ""
    pending: list[Intent] = field(default_factory=list)
    last: str = ""

    def start(self) -> Turn:
        """Return the first turn, which looks around."""
        self.intents = [Intent(tool="look"), Intent(tool="inventory")]
        self.turns = 1
        return Turn(self.voice.say("start"), tuple((i.tool, "{}") for i in self.intents))

    def turn(self) -> Turn:
        """Return the next turn: the calls and the reason for them."""
        self.turns += 1
        if self.ended:
            return self._say(self.voice.say(self.ended, says=self.last, done=account.done(self.task)))
        words = self.fault.decide(self)
        if words is None and self.pending:
            self.intents = [self.pending.pop()]
            words = self.voice.say("check")
        elif words is None:
            intent = GoalPlanner(self.task).next(self.memory)
            self.intents = [] if intent is None else self._batch(intent)
            if intent is None:
                return self._say(account.closing(self))
            words = self._words(intent)
        calls = tuple((i.tool, self.fault.encode(self, i)) for i in self.intents)
        return Turn(self._flush(words), calls)

    def observe(self, results: list[str]) -> None:
        """Process the results of the last turn's calls."""
        for intent, text in zip(self.intents, results, strict=True):
            seen = parse_observation(text)
            if seen.over:
                self.ended = "lost" if "lost" in text else "won"
                self.last = text.split("\n")[0]
                return
            if not self.fault.reflect(self, intent, seen):
                self._take_in(intent, seen)

    # The reflection part: each function handles one outcome of one call.

    def _take_in(self, intent: Intent, seen: ParsedObservation) -> None:
        if seen.room:
            self._arrive(intent, seen)
        elif intent.tool == "examine" and not seen.text.startswith(("You can't", "Error")):
            self._examined(intent, seen)
        elif seen.refused:
            self._refused(intent, seen)
        else:
            handlers: dict[str, Callable[[Intent, ParsedObservation], None]] = {
                "open": self._opened, "take": self._took, "unlock": self._unlocked,
                "put_on": self._delivered, "insert": self._delivered, "cook": self._processed,
                "cut": self._processed, "inventory": self._checked, "prepare_meal": self._prepared,
                "close": self._closed,
            }  # fmt: skip
            handler = handlers.get(intent.tool)
            if handler:
                handler(intent, seen)

    def list_wanted(self) -> set[str]:
        """Return the names that the agent has reason to look for."""
        memory = self.memory
        names = {goal.item for goal in self.task.deliveries if ("deliver", goal.item) not in memory.done}
        names |= {item for item in memory.ingredients if item not in memory.carried} | set(
            memory.keys.values()
        )
        if self.task.cook and not memory.ingredients:
            names.add("cookbook")
        return names - set(memory.carried)

    def _arrive(self, intent: Intent, seen: ParsedObservation) -> None:
        old = self.memory.here
        new = self.memory.add_room(seen)
        if intent.tool == "go":
            self.memory.connect_rooms(intent.args["direction"], old)
        self.thoughts.append(self.voice.room(seen, new=new, wanted=self.list_wanted()))

    def _opened(self, intent: Intent, seen: ParsedObservation) -> None:
        target = intent.args["object"]
        if target in self.memory.containers:
            self.memory.containers[target] = (self.memory.here, "open")
            for name in seen.revealed:
                self.memory.things[name] = BelievedPlace(self.memory.here, target)
        for side in self.memory.find_door_sides(target):
            side.state = "open"
        self.thoughts.append(self.voice.opened(target, seen, self.list_wanted()))

    def _took(self, intent: Intent, seen: ParsedObservation) -> None:
        self.memory.take(intent.args["object"])
        if intent is self.intents[-1]:
            names = [
                "the " + i.args["object"] for i in self.intents if i.args["object"] in self.memory.carried
            ]
            text = self.voice.say("took", items=join_items(names))
            self.thoughts.append(text[0].upper() + text[1:])

    def _examined(self, intent: Intent, seen: ParsedObservation) -> None:
        if "Ingredients:" in seen.text:
            self.memory.ingredients, self.memory.directions = parse_recipe(seen.text)
            steps = join_items([f"{verb} the {item}" for verb, item in self.memory.directions])
            items = join_items(["the " + item for item in self.memory.ingredients])
            self.thoughts.append(self.voice.say("recipe", items=items, steps=steps))
        else:
            self.thoughts.append(self.voice.say("examined", item=intent.args["object"]))

    def _unlocked(self, intent: Intent, seen: ParsedObservation) -> None:
        for side in self.memory.find_door_sides(intent.args["object"]):
            side.state = "shut"
        words = {"target": intent.args["object"], "key": intent.args["key"]}
        self.thoughts.append(self.voice.say("unlocked", **words))

    def _delivered(self, intent: Intent, seen: ParsedObservation) -> None:
        item = intent.args["object"]
        self.memory.carried.remove(item)
        self.memory.done.add(("deliver", item))
        self.thoughts.append(self.voice.say("delivered", item=item))

    def _processed(self, intent: Intent, seen: ParsedObservation) -> None:
        item = intent.args["object"]
        verb = {"stove": "fry", "oven": "roast", "BBQ": "grill"}.get(intent.args.get("appliance", ""), "")
        self.memory.done.add((verb or intent.args["how"], item))
        appliance = intent.args.get("appliance", "")
        self.thoughts.append(self.voice.say("cooked" if verb else "was_cut", item=item, appliance=appliance))

    def _checked(self, intent: Intent, seen: ParsedObservation) -> None:
        if self.turns == 1:
            _, _, items = seen.text.partition("You are carrying: ")
            self.memory.carried.extend(split_names(items.rstrip(".")))
        else:
            self.thoughts.append(self.voice.say("checked"))

    def _prepared(self, intent: Intent, seen: ParsedObservation) -> None:
        self.memory.done.add(("prepare",))
        self.thoughts.append(self.voice.say("prepared"))

    def _closed(self, intent: Intent, seen: ParsedObservation) -> None:
        self.memory.containers[intent.args["object"]] = (self.memory.here, "closed")
        self.thoughts.append(self.voice.say("closed", target=intent.args["object"]))

    def _refused(self, intent: Intent, seen: ParsedObservation) -> None:
        memory, target = self.memory, intent.args.get("object", "")
        if match := re.match(r"You have to unlock the (.+) with the (.+) first", seen.text):
            door, key = match.groups()
            memory.keys[door] = key
            for side in memory.find_door_sides(door):
                side.state = "locked"
            self.thoughts.append(self.voice.say("need_key", target=door, key=key))
        elif match := re.match(r"You have to open the (.+) first", seen.text):
            for side in memory.find_door_sides(match.group(1)):
                side.state = "shut"
            self.thoughts.append(self.voice.say("shut", target=match.group(1)))
        elif "is closed" in seen.text and intent.tool == "insert":
            memory.containers[intent.args["into"]] = (memory.here, "closed")
            self.thoughts.append(self.voice.say("refused", says=seen.says))
        else:
            self._count(intent, seen, target)

    def _count(self, intent: Intent, seen: ParsedObservation, target: str) -> None:
        memory = self.memory
        what = {"cut": intent.args.get("how", "") + target, "prepare_meal": "prepare_meal"}.get(
            intent.tool, target
        )
        memory.refusals[what] = memory.refusals.get(what, 0) + 1
        error = seen.text.startswith("Error:")
        deck = "tool_error" if error else "refused"
        if what == "prepare_meal":
            left_out = any(verb + item in memory.given_up for verb, item in memory.directions)
            deck = "meal_lacks" if left_out else "meal_refused"
        self.thoughts.append(self.voice.say(deck, says=seen.says))
        if memory.refusals[what] >= 3:
            memory.given_up.add(what)
            self.thoughts.append(self.voice.say("drop"))
        elif what == "prepare_meal" and memory.refusals[what] == 1:
            self.pending.append(Intent(tool="inventory"))
        else:
            self.thoughts.append(self.voice.say("again"))

    # Wording and small variations of the action part.

    def _batch(self, intent: Intent) -> list[Intent]:
        """Return the calls that take several things of the same room in one turn."""
        if intent.tool != "take" or not self.task.cook:
            return [intent]
        out = [intent]
        for name in (*self.memory.ingredients, "knife"):
            place = self.memory.things.get(name)
            if place and place.room == self.memory.here and name != intent.args["object"]:
                source = {"from": place.holder} if place.holder else {}
                out.append(Intent(tool="take", args={"object": name, **source}))
        return out[:3]

    def _words(self, intent: Intent) -> str:
        text = self.voice.intent(intent, self.memory)
        if self.turns % 4 == 0:
            text = f"{account.status(self)} {text}"
        elif self.turns == 2:
            text = f"{account.plan(self)} {text}".strip()
        if len(self.intents) > 1:
            others = join_items(["the " + i.args["object"] for i in self.intents[1:]])
            text += f" I'll take {others} in the same go."
        return text

    def _say(self, text: str) -> Turn:
        return Turn(self._flush(text))

    def _flush(self, text: str) -> str:
        said = " ".join([*self.thoughts, text]).strip()
        self.thoughts = []
        return said

    def arguments(self, intent: Intent) -> str:
        """Return the arguments of a call as a model writes them."""
        return json.dumps(intent.args)
