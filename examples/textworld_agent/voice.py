"""Wording of the agent's observations and intents. Each phrase is used once before any is repeated."""

from __future__ import annotations

import random

from agentguard_lab.textworld.belief_state import Memory
from agentguard_lab.textworld.observation_parser import ParsedObservation
from agentguard_lab.textworld.planner import Intent

from examples.textworld_agent.phrases import PHRASES


def join_items(items: list[str] | tuple[str, ...], last: str = "and") -> str:
    """Return ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


class Voice:
    """Selection of phrases from decks that are shuffled by the run's seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._decks: dict[str, list[str]] = {}

    def say(self, deck: str, **words: object) -> str:
        """Return one phrase of a deck, with its words filled in."""
        if not self._decks.get(deck):
            self._decks[deck] = self._rng.sample(PHRASES[deck], len(PHRASES[deck]))
        return self._decks[deck].pop().format(**words)

    def room(self, seen: ParsedObservation, *, new: bool, wanted: set[str]) -> str:
        """Return a description of the room that the agent has entered."""
        here = [name for name in seen.things if name in wanted]
        first = self.say("room_new" if new else "room_back", room=seen.room, sight=_sight(seen))
        if not here:
            return first
        if not new and len(here) == len(seen.things):
            return first
        holders = {seen.things[name] for name in here}
        holder = holders.pop() if len(holders) == 1 else None
        where = f"on the {holder}" if holder else "right here"
        return (
            f"{first} {self.say('spotted', items=join_items(['the ' + name for name in here]), where=where)}"
        )

    def opened(self, target: str, seen: ParsedObservation, wanted: set[str]) -> str:
        """Return the result of opening something."""
        if not seen.revealed:
            return self.say("opened", target=target)
        found = [name for name in seen.revealed if name in wanted]
        inside = join_items([_article(name) for name in seen.revealed])
        if found:
            return self.say(
                "revealed_wanted", target=target, found=join_items(["the " + name for name in found])
            )
        return self.say("revealed_other", target=target, inside=inside)

    def intent(self, intent: Intent, memory: Memory) -> str:
        """Return the agent's next action and its purpose."""
        goal, _, rest = intent.purpose.partition(" ")
        deck = f"{intent.tool}:{goal}"
        words = {"way": "", "rest": rest, "room": "", "here": memory.here, **intent.args}
        if intent.tool == "go":
            way = intent.args["direction"]
            known = memory.rooms[memory.here][way].to
            words |= {"way": way, "room": known or "", "door": memory.rooms[memory.here][way].door or "exit"}
        words["into"] = "into" if intent.args.get("appliance") == "oven" else "onto"
        words["place"] = intent.args.get("onto") or intent.args.get("into") or ""
        return self.say(deck if deck in PHRASES else intent.tool, **words)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _sight(seen: ParsedObservation) -> str:
    """Return a clause on the notable things of a room."""
    parts = [_article(name) for name in (*seen.containers, *seen.appliances)][:3]
    doors = [f"{_article(state)} {door} to the {way}" for way, (door, state) in seen.exits.items() if door]
    ways = [way for way, (door, _) in seen.exits.items() if not door]
    if ways:
        doors.append(f"{'a way' if len(ways) == 1 else 'ways'} out to the {join_items(ways)}")
    return join_items(parts + doors) or "nothing much"
