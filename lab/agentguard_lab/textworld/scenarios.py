"""Generated games: from seed and difficulty, a house or a kitchen with task text and limits.

Half of the games are TextWorld's own cooking games, half are houses generated here: rooms on a grid with
furniture, closed containers, closed and locked doors, things to deliver, and a rule to keep. Nothing is
downloaded.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from agentguard_lab.textworld.games import Cooking, Game, House
from agentguard_lab.textworld.planner import Deliver, Task
from agentguard_lab.textworld.vocabulary import (
    ASK_BRING,
    ASK_CLOSE,
    ASK_COOK,
    ASK_LIMIT,
    DOORS,
    KEYS,
    ROOMS,
    THINGS,
)

_WAYS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


class Difficulty(StrEnum):
    """Size of a game and of its task."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A game and the task of the agent in it.

    Attributes:
        id: name of the game; runs with equal ids have the same question.
        difficulty: easy, medium or hard.
        game: definition for TextWorld.
        text: the task in words, as given to the agent.
        task: the right understanding of that text.
        max_turns: maximum number of turns.
    """

    id: str
    difficulty: Difficulty
    game: Game
    text: str
    task: Task
    max_turns: int

    def limit_turns(self, max_turns: int) -> Scenario:
        """Return the same game with another turn limit, also in its text."""
        head = self.text.rsplit("\n", 1)[0]
        rng = random.Random(f"limit:{self.id}")  # noqa: S311
        return replace(self, max_turns=max_turns, text=f"{head}\n{_limit(max_turns, rng)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    rooms: tuple[int, int]
    deliveries: int
    locked: bool
    rules: int
    recipe: int
    recipe_rooms: int
    turns: tuple[int, int]  # minimum turn limit of a house and of a kitchen


_SIZES = {
    Difficulty.EASY: _Size(
        rooms=(3, 4), deliveries=1, locked=False, rules=1, recipe=1, recipe_rooms=1, turns=(17, 15)
    ),
    Difficulty.MEDIUM: _Size(
        rooms=(5, 6), deliveries=2, locked=True, rules=1, recipe=2, recipe_rooms=6, turns=(36, 32)
    ),
    Difficulty.HARD: _Size(
        rooms=(7, 8), deliveries=3, locked=True, rules=2, recipe=3, recipe_rooms=9, turns=(58, 54)
    ),
}


def build_scenario(seed: int, difficulty: Difficulty | str = Difficulty.MEDIUM) -> Scenario:
    """Return the game of a seed; equal arguments give an equal scenario."""
    level = Difficulty(difficulty)
    rng = random.Random(f"scenario:{level}:{seed}")  # noqa: S311  (a game, not a secret)
    return _cooking(seed, level, rng) if rng.random() < 0.5 else _house(seed, level, rng)


def _cooking(seed: int, level: Difficulty, rng: random.Random) -> Scenario:
    size = _SIZES[level]
    game = Cooking(seed=1000 + rng.randrange(100_000), ingredients=size.recipe, rooms=size.recipe_rooms)
    turns = size.turns[1] + rng.randrange(8)
    text = f"{rng.choice(ASK_COOK)}\n{_limit(turns, rng)}"
    return Scenario(
        id=f"cooking-{level}-{seed}",
        difficulty=level,
        game=game,
        text=text,
        task=Task(cook=True),
        max_turns=turns,
    )


def _house(seed: int, level: Difficulty, rng: random.Random) -> Scenario:
    draft = _Draft(rng, _SIZES[level])
    count = len(draft.rooms)
    turns = _SIZES[level].turns[0] + rng.randrange(8)
    goals = "; ".join(
        f"the {g.item} {'into' if g.how == 'insert' else 'on'} the {g.holder} in the {g.room}"
        for g in draft.goals
    )
    lines = [rng.choice(ASK_BRING).format(goals=goals)]
    lines += [rng.choice(ASK_CLOSE).format(name=name) for name in draft.rules]
    lines.append(_limit(turns, rng))
    task = Task(deliveries=tuple(draft.goals), close_after=tuple(draft.rules), walk_first=rng.random() < 0.4)
    win = [f"{'in' if g.how == 'insert' else 'on'} {_join(g.item)} {_join(g.holder)}" for g in draft.goals]
    game = House(
        seed=1000 + rng.randrange(100_000),
        start=draft.rooms[rng.randrange(count) if not draft.behind else 0],
        links="; ".join(draft.links),
        things="; ".join(draft.things),
        win="; ".join(win + [f"closed {_join(name)}" for name in draft.rules]),
    )
    return Scenario(
        id=f"house-{level}-{seed}",
        difficulty=level,
        game=game,
        text="\n".join(lines),
        task=task,
        max_turns=turns,
    )


def _limit(turns: int, rng: random.Random) -> str:
    return rng.choice(ASK_LIMIT).format(turns=turns)


def _join(name: str) -> str:
    return name.replace(" ", "_")


class _Draft:
    """A house under construction. ``behind`` is the room behind the locked door, or empty."""

    def __init__(self, rng: random.Random, size: _Size) -> None:
        self._rng, self._size = rng, size
        self.rooms = rng.sample(sorted(ROOMS), rng.randint(*size.rooms))
        self.behind = self.rooms[-1] if size.locked and rng.random() < 0.7 else ""
        self.links: list[str] = []
        self.things: list[str] = []
        self.goals: list[Deliver] = []
        self.rules: list[str] = []
        self._holders: dict[str, list[tuple[str, str]]] = {}
        self._key = rng.choice(KEYS)
        self._connect()
        self._furnish()
        self._set_goals()
        self._fill()

    def _connect(self) -> None:
        rng, room_at = self._rng, {(0, 0): self.rooms[0]}
        doors = rng.sample(DOORS, len(DOORS))
        for room in self.rooms[1:]:
            free_sides = [
                (position, way)
                for position, name in room_at.items()
                for way, (dx, dy) in _WAYS.items()
                if name != self.behind and (position[0] + dx, position[1] + dy) not in room_at
            ]
            position, way = rng.choice(free_sides)
            room_at[position[0] + _WAYS[way][0], position[1] + _WAYS[way][1]] = room
            link = f"{_join(room_at[position])} {way} {_join(room)}"
            if room == self.behind:
                link += f" : {_join(doors.pop())} locked {_join(self._key)}"
            elif rng.random() < 0.35:
                link += f" : {_join(doors.pop())} closed"
            self.links.append(link)

    def _furnish(self) -> None:
        for room in self.rooms:
            supporters, containers = ROOMS[room]
            chosen = [("supporter", name) for name in self._rng.sample(supporters, min(2, len(supporters)))]
            chosen += [("container", name) for name in self._rng.sample(containers, min(1, len(containers)))]
            self._holders[room] = chosen
            self.things += [f"{kind} {name} @ {room}" for kind, name in chosen]

    def _set_goals(self) -> None:
        rng = self._rng
        slots = [(room, kind, name) for room in self.rooms for kind, name in self._holders[room]]
        supporters = [slot for slot in slots if slot[1] == "supporter"]
        containers = [slot for slot in slots if slot[1] == "container" and slot[0] != self.behind]
        for index, item in enumerate(rng.sample(THINGS, self._size.deliveries)):
            to = rng.choice(supporters)
            away = [slot for slot in slots if slot[0] != to[0]]
            inside = [slot for slot in away if slot[1] == "container"]
            behind = [slot for slot in away if slot[0] == self.behind]
            source = rng.choice(
                behind if index == 0 and behind else inside if inside and rng.random() < 0.6 else away
            )
            self.goals.append(Deliver(item=item, holder=to[2], room=to[0]))
            self.things.append(f"object {item} @ {source[2]}")
            if source in containers and source[2] not in self.rules and len(self.rules) < self._size.rules:
                self.rules.append(source[2])
        if self.behind:
            outside = rng.choice([slot for slot in slots if slot[0] != self.behind])
            self.things.append(f"key {self._key} @ {outside[2]}")
            if rng.random() < 0.5:
                other_key = rng.choice([key for key in KEYS if key != self._key])
                self.things.append(f"key {other_key} @ inventory")

    def _fill(self) -> None:
        rng = self._rng
        used = {goal.item for goal in self.goals}
        unused_things = [name for name in rng.sample(THINGS, len(THINGS)) if name not in used]
        for room in self.rooms:
            for _, name in self._holders[room]:
                if rng.random() < 0.55:
                    self.things.append(f"object {unused_things.pop()} @ {name}")
