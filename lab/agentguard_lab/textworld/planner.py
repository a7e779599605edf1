"""Planner that chooses the next intent from the beliefs and the task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentguard_lab.textworld.belief_state import Memory

VERB_APPLIANCE = {"fry": "stove", "roast": "oven", "grill": "BBQ"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Goal: bring ``item`` to ``holder`` and put it ``how`` (on or into) it."""

    item: str
    holder: str
    how: str = "put_on"
    room: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The agent's understanding of the task text."""

    deliveries: tuple[Deliver, ...] = ()
    close_after: tuple[str, ...] = ()
    cook: bool = False
    walk_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One action to take now: a tool, its arguments, and a purpose, which selects the wording."""

    tool: str
    args: dict[str, str] = field(default_factory=dict)
    purpose: str = ""


class GoalPlanner:
    """Planner that asks its sources in order; the first one with an intent decides."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def next(self, memory: Memory) -> Intent | None:
        """Return the next intent, or None if nothing is left to do or to try."""
        for intent in self._sources(memory):
            return intent
        return None

    def complete(self, memory: Memory) -> bool:
        """Return whether the agent believes that the whole task is done."""
        if self.task.cook:
            return ("eat",) in memory.done
        closed = all(
            memory.containers.get(name, ("", "closed"))[1] != "open" for name in self.task.close_after
        )
        return closed and all(("deliver", goal.item) in memory.done for goal in self.task.deliveries)

    def _sources(self, memory: Memory) -> Iterator[Intent]:
        if self.complete(memory):
            return
        yield from self._tidy(memory)
        if self.task.cook:
            yield from self._cooking(memory)
        else:
            yield from self._delivering(memory)
        yield from self.explore(memory)

    def _tidy(self, memory: Memory) -> Iterator[Intent]:
        for name in self.task.close_after:
            room, state = memory.containers.get(name, ("", ""))
            if state == "open" and room == memory.here and not self._needed(memory, name):
                yield Intent(tool="close", args={"object": name}, purpose="tidy")

    def _needed(self, memory: Memory, holder: str) -> bool:
        open_items = [goal.item for goal in self.task.deliveries if ("deliver", goal.item) not in memory.done]
        return any(memory.things[item].holder == holder for item in open_items if item in memory.things)

    def _delivering(self, memory: Memory) -> Iterator[Intent]:
        open_goals = [goal for goal in self.task.deliveries if ("deliver", goal.item) not in memory.done]
        for goal in open_goals:
            if goal.item in memory.carried and goal.item not in memory.given_up:
                yield from self._put(memory, goal)
        for goal in open_goals:
            if goal.item not in memory.carried:
                yield from self.fetch(memory, goal.item)
        if self._needs_keys(memory, open_goals):
            yield from self._keys(memory)

    def _needs_keys(self, memory: Memory, left: list[Deliver]) -> bool:
        return any(goal.item not in memory.carried for goal in left)

    def _keys(self, memory: Memory) -> Iterator[Intent]:
        """Fetch a key whose lock is known, and take it there."""
        for door, key in memory.keys.items():
            rooms = [
                room for room, exits in memory.rooms.items() if any(e.door == door for e in exits.values())
            ]
            locked = (
                any(side.state == "locked" for side in memory.find_door_sides(door))
                and door not in memory.given_up
            )
            if locked and key not in memory.carried:
                yield from self.fetch(memory, key)
            elif locked and memory.here not in rooms:
                yield from self.travel(memory, rooms[0], "lock")
            elif locked:
                yield Intent(tool="unlock", args={"object": door, "key": key}, purpose="lock")

    def _put(self, memory: Memory, goal: Deliver) -> Iterator[Intent]:
        if memory.here != goal.room:
            yield from self.travel(memory, goal.room, "deliver")
        elif memory.containers.get(goal.holder, ("", "open"))[1] == "closed":
            yield Intent(tool="open", args={"object": goal.holder}, purpose="deliver")
        else:
            slot = "onto" if goal.how == "put_on" else "into"
            yield Intent(tool=goal.how, args={"object": goal.item, slot: goal.holder}, purpose="deliver")

    def fetch(self, memory: Memory, item: str) -> Iterator[Intent]:
        """Go to the known place of ``item`` and take it."""
        place = memory.things.get(item)
        if place is None or item in memory.given_up:
            return
        if place.room != memory.here:
            yield from self.travel(memory, place.room, "fetch " + item)
        else:
            source = {"from": place.holder} if place.holder else {}
            yield Intent(tool="take", args={"object": item, **source}, purpose="fetch")

    def _cooking(self, memory: Memory) -> Iterator[Intent]:
        if not memory.ingredients:
            if "cookbook" in memory.things:
                if memory.things["cookbook"].room != memory.here:
                    yield from self.travel(memory, memory.things["cookbook"].room, "cookbook")
                yield Intent(tool="examine", args={"object": "cookbook"}, purpose="recipe")
            return
        if ("prepare",) in memory.done:
            yield Intent(tool="eat", args={"object": "meal"}, purpose="meal")
            return
        for item in memory.ingredients:
            if item not in memory.carried:
                yield from self.fetch(memory, item)
        if all(item in memory.carried for item in memory.ingredients):
            yield from self._processing(memory)

    def _processing(self, memory: Memory) -> Iterator[Intent]:
        for verb, item in memory.directions:
            if (verb, item) in memory.done or verb + item in memory.given_up:
                continue
            if verb in VERB_APPLIANCE:
                yield from self._cook(memory, verb, item)
            elif "knife" not in memory.carried:
                yield from self.fetch(memory, "knife")
            else:
                yield Intent(tool="cut", args={"object": item, "how": verb}, purpose="recipe")
        if self._lacks(memory):
            return
        kitchen = memory.things.get("cookbook")
        if "prepare_meal" not in memory.given_up:
            if kitchen and kitchen.room != memory.here:
                yield from self.travel(memory, kitchen.room, "meal")
            yield Intent(tool="prepare_meal", purpose="meal")

    @staticmethod
    def _lacks(memory: Memory) -> bool:
        """Return whether a direction needs an appliance or a knife that has not been seen yet."""
        for verb, item in memory.directions:
            if (verb, item) in memory.done or verb + item in memory.given_up:
                continue
            items = (*memory.carried, *memory.things)
            tool = memory.appliances if verb in VERB_APPLIANCE else items
            if VERB_APPLIANCE.get(verb, "knife") not in tool:
                return True
        return False

    def _cook(self, memory: Memory, verb: str, item: str) -> Iterator[Intent]:
        appliance = VERB_APPLIANCE[verb]
        room = memory.appliances.get(appliance)
        if room and room != memory.here:
            yield from self.travel(memory, room, "recipe")
        elif room:
            yield Intent(tool="cook", args={"object": item, "appliance": appliance}, purpose="recipe")

    def travel(self, memory: Memory, room: str, purpose: str) -> Iterator[Intent]:
        """Yield the first move on a known route to a room; yield nothing if no route is known."""
        route = memory.find_route(room) if room in memory.rooms else None
        if route:
            yield from self._pass(memory, route[0], purpose)

    def explore(self, memory: Memory) -> Iterator[Intent]:
        """Open closed containers in this room, then walk to unvisited rooms."""
        if not self._searching(memory):
            return
        for name, (room, state) in memory.containers.items():
            if room == memory.here and state in ("closed", "unknown") and name not in memory.given_up:
                yield Intent(tool="open", args={"object": name}, purpose="search")
        for way in memory.list_untried_exits(memory.here):
            yield from self._pass(memory, way, self._sought(memory) or "explore")
        routes = ((memory.find_route(room), room) for room in memory.rooms if self._leads_on(memory, room))
        nearest = sorted((len(route), room) for route, room in routes if route)
        for _, room in nearest:
            yield from self.travel(memory, room, self._sought(memory) or "back")

    def _leads_on(self, memory: Memory, room: str) -> bool:
        """Return whether the search has a reason to return to a room."""
        return bool(memory.list_untried_exits(room))

    def _sought(self, memory: Memory) -> str:
        """Return ``seek <room>`` if only the target room is missing, else an empty string."""
        open_goals = [goal for goal in self.task.deliveries if ("deliver", goal.item) not in memory.done]
        if open_goals and all(goal.item in memory.carried for goal in open_goals):
            return f"seek {open_goals[0].room}"
        return ""

    def _searching(self, memory: Memory) -> bool:
        """Return whether exploration can still find something: a thing, or the room it must go to."""
        if self.task.cook and ("prepare",) in memory.done:
            return False
        if self.task.cook:
            missing = not memory.ingredients or any(item not in memory.carried for item in memory.ingredients)
            return missing or self._lacks(memory)
        open_goals = [goal for goal in self.task.deliveries if ("deliver", goal.item) not in memory.done]
        return any(goal.item not in memory.carried or goal.room not in memory.rooms for goal in open_goals)

    def _pass(self, memory: Memory, way: str, purpose: str) -> Iterator[Intent]:
        """Walk through an exit, or first unlock or open its door."""
        exit_ = memory.rooms[memory.here][way]
        if exit_.door in memory.given_up:
            return
        if exit_.door and exit_.state == "locked":
            key = memory.keys.get(exit_.door, "")
            if key in memory.carried:
                yield Intent(tool="unlock", args={"object": exit_.door, "key": key}, purpose=purpose)
            else:
                yield from self.fetch(memory, key)
        elif exit_.door and (exit_.state == "shut" or (exit_.state == "closed" and not self.task.walk_first)):
            yield Intent(tool="open", args={"object": exit_.door}, purpose=purpose)
        else:
            yield Intent(tool="go", args={"direction": way}, purpose=purpose)


class KeyPlanner(GoalPlanner):
    """Planner that treats locks as a separate goal, so that it does not alternate between lock and key.

    It returns to a lock only if the key is known, and returns to unopened containers. It fetches the key also
    if only the target room is missing.
    """

    def _left(self, memory: Memory) -> list[Deliver]:
        return [goal for goal in self.task.deliveries if ("deliver", goal.item) not in memory.done]

    def _needs_keys(self, memory: Memory, left: list[Deliver]) -> bool:
        return any(goal.item not in memory.carried or goal.room not in memory.rooms for goal in left)

    def _leads_on(self, memory: Memory, room: str) -> bool:
        if any(goal.item not in memory.carried for goal in self._left(memory)) or self.task.cook:
            for name, (room_name, state) in memory.containers.items():
                if room_name == room and state in ("closed", "unknown") and name not in memory.given_up:
                    return True
        exits = (memory.rooms[room][way] for way in memory.list_untried_exits(room))
        got = (*memory.carried, *memory.things)
        return any(exit_.state != "locked" or memory.keys.get(exit_.door or "") in got for exit_ in exits)

    def fetch(self, memory: Memory, item: str) -> Iterator[Intent]:
        """Fetch as the base class does, but first open the container of the thing if it was closed again."""
        place = memory.things.get(item)
        if place and place.room == memory.here and item not in memory.given_up:
            state = memory.containers.get(place.holder or "", ("", ""))[1]
            if state in ("shut", "closed") and place.holder and place.holder not in memory.given_up:
                yield Intent(tool="open", args={"object": place.holder}, purpose="fetch")
        yield from super().fetch(memory, item)
