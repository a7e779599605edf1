"""Beliefs of the agent: map, places of things, inventory and completed tasks, updated by observations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from agentguard_lab.textworld.observation_parser import ParsedObservation

OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


@dataclass(slots=True)
class Exit:
    """Exit of a room: its door, the state of the door, and the room behind it, once visited.

    States: open, closed (as described), shut (walking failed, so it must be opened), locked.
    """

    door: str | None
    state: str
    to: str | None = None


@dataclass(slots=True)
class BelievedPlace:
    """Last known place of a thing; ``holder`` None means the floor."""

    room: str
    holder: str | None


@dataclass(slots=True)
class Memory:
    """Beliefs, which may be wrong; no method queries the game.

    ``compass`` is the order in which the agent tries exits; if empty, the order of the description.
    """

    here: str = ""
    rooms: dict[str, dict[str, Exit]] = field(default_factory=dict)
    things: dict[str, BelievedPlace] = field(default_factory=dict)
    carried: list[str] = field(default_factory=list)
    containers: dict[str, tuple[str, str]] = field(default_factory=dict)
    appliances: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    ingredients: tuple[str, ...] = ()
    directions: tuple[tuple[str, str], ...] = ()
    done: set[tuple[str, ...]] = field(default_factory=set)
    refusals: dict[str, int] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    visits: dict[str, int] = field(default_factory=dict)
    compass: tuple[str, ...] = ()

    def copy(self) -> Memory:
        """Return an independent copy. It is explicit, as `copy.deepcopy` takes longer than a turn."""
        rooms = {room: {w: replace(e) for w, e in exits.items()} for room, exits in self.rooms.items()}
        return replace(
            self,
            rooms=rooms,
            things={name: replace(place) for name, place in self.things.items()},
            carried=list(self.carried),
            containers=dict(self.containers),
            appliances=dict(self.appliances),
            keys=dict(self.keys),
            done=set(self.done),
            refusals=dict(self.refusals),
            given_up=set(self.given_up),
            visits=dict(self.visits),
        )

    def add_room(self, observation: ParsedObservation) -> bool:
        """Add a described room; return True if it is new."""
        assert observation.room
        new = observation.room not in self.rooms
        exits = self.rooms.setdefault(observation.room, {})
        for way, (door, state) in observation.exits.items():
            exit_ = exits.setdefault(way, Exit(door, state))
            # The description calls a locked door "closed" too; keep the state learnt by trying.
            exit_.state = exit_.state if exit_.state in ("locked", "shut") and state == "closed" else state
        for name in observation.containers:
            self.containers.setdefault(name, (observation.room, "unknown"))
        for name in observation.appliances:
            self.appliances.setdefault(name, observation.room)
        for name, holder in observation.things.items():
            self.things[name] = BelievedPlace(observation.room, holder)
        self.here = observation.room
        self.visits[observation.room] = self.visits.get(observation.room, 0) + 1
        return new

    def connect_rooms(self, way: str, old: str) -> None:
        """Connect the rooms on both sides of a walk; ``here`` is already the new one."""
        self.rooms[old][way].to = self.here
        back = self.rooms[self.here].get(OPPOSITE[way])
        if back:
            back.to = old

    def take(self, name: str) -> None:
        """Mark a thing as carried."""
        self.things.pop(name, None)
        if name not in self.carried:
            self.carried.append(name)

    def find_door_sides(self, name: str) -> list[Exit]:
        """Return all known sides of a door."""
        return [way for exits in self.rooms.values() for way in exits.values() if way.door == name]

    def list_untried_exits(self, room: str) -> list[str]:
        """Return exits of a room with unknown destination that are not given up, in order of ``compass``."""
        exits = self.rooms.get(room, {})
        directions = [
            way for way, exit_ in exits.items() if exit_.to is None and exit_.door not in self.given_up
        ]
        return sorted(directions, key=self.compass.index) if self.compass else directions

    def find_route(self, goal: str) -> list[str] | None:
        """Return directions from here to a known room, or None without a known way."""
        queue, routes = deque([self.here]), {self.here: list[str]()}
        while queue:
            room = queue.popleft()
            if room == goal:
                return routes[room]
            for way, exit_ in self.rooms.get(room, {}).items():
                if exit_.to and exit_.to not in routes and exit_.door not in self.given_up:
                    routes[exit_.to] = [*routes[room], way]
                    queue.append(exit_.to)
        return None
