"""Games: TextWorld's cooking games by seed, and small houses built with its game maker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentguard.errors import MissingExtra


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooking:
    """A game of TextWorld's cooking challenge: ``rooms`` is 1, 6, 9 or 12."""

    seed: int
    ingredients: int = 2
    rooms: int = 6

    def build(self, options: Any) -> Any:
        """Return the game."""
        from textworld.challenges.tw_cooking import cooking

        settings = {
            "recipe": self.ingredients, "take": self.ingredients, "go": self.rooms, "cook": True, "cut": True,
            "open": True, "drop": False, "recipe_seed": self.seed, "split": None,
        }  # fmt: skip
        with _parsed_once(cooking):
            return cooking.make(settings, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """House with an explicit layout; TextWorld generates its descriptions from the seed.

    Attributes:
        links: ``room direction room``, or with a door ``room direction room : door closed`` or
            ``… : door locked key``; words joined by ``_``, entries by ``;``.
        things: ``kind name @ parent``, joined by ``;``: kind is container, supporter, object or key; parent
            is a room, a piece of furniture, or ``inventory``.
        win: facts that must hold at the same time, joined by ``;``: ``on item holder``, ``in item holder``,
            ``closed holder``.
    """

    seed: int
    start: str
    links: str
    things: str
    win: str

    def build(self, options: Any) -> Any:
        """Return the game."""
        from textworld import GameMaker
        from textworld.generator import make_grammar
        from textworld.generator.game import Event, Quest

        maker = GameMaker(options)
        maker.grammar = make_grammar(options.grammar, rng=options.rngs["grammar"])
        entities: dict[str, Any] = {"inventory": maker.inventory}
        locks = self._rooms(maker, entities)
        for line in _entries(self.things):
            self._thing(maker, entities, line)
        for door, key in locks:
            maker.add_fact("match", entities[key], door)
        maker.set_player(entities[self.start])
        facts = {
            maker.new_fact(name, *(entities[word.replace("_", " ")] for word in words))
            for name, *words in (line.split() for line in _entries(self.win))
        }
        maker.quests = [Quest(win_events=[Event(conditions=facts)])]
        return maker.build()

    def _rooms(self, maker: Any, entities: dict[str, Any]) -> list[tuple[Any, str]]:
        from agentguard_lab.textworld.belief_state import OPPOSITE

        locks = []
        for line in _entries(self.links):
            way, _, lock = line.partition(" : ")
            room, direction, neighbour = (word.replace("_", " ") for word in way.split())
            for name in (room, neighbour):
                if name not in entities:
                    entities[name] = maker.new_room(name)
            path = maker.connect(
                getattr(entities[room], direction), getattr(entities[neighbour], OPPOSITE[direction])
            )
            if lock:
                name, state, *key = (word.replace("_", " ") for word in lock.split())
                door = maker.new_door(path, name=name)
                door.add_property(state)
                locks += [(door, key[0])] if key else []
        return locks

    @staticmethod
    def _thing(maker: Any, entities: dict[str, Any], line: str) -> None:
        what, _, parent = line.partition(" @ ")
        kind, _, name = what.partition(" ")
        entity = maker.new({"container": "c", "supporter": "s", "object": "o", "key": "k"}[kind], name=name)
        if kind == "container":
            entity.add_property("closed")
        entities[name] = entity
        entities[parent].add(entity)


Game = Cooking | House


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(";")]


def load_textworld() -> Any:
    """Return the package. Raises MissingExtra if it is not installed."""
    try:
        import textworld
    except ImportError:
        raise MissingExtra("textworld", "textworld") from None
    return textworld


@cache
def _knowledge(**paths: str) -> Any:
    """Return TextWorld's rules of houses or kitchens, cached since parsing dominates the cost of a game."""
    from textworld.generator.data import KnowledgeBase

    return KnowledgeBase.load(**paths)


@contextmanager
def _parsed_once(module: Any) -> Iterator[None]:
    """Make a challenge use the rules of `_knowledge`; otherwise it parses them for each game."""
    original = module.KnowledgeBase
    module.KnowledgeBase = SimpleNamespace(load=_knowledge)
    try:
        yield
    finally:
        module.KnowledgeBase = original


def compile_game(game: Game, folder: Path) -> Path:
    """Build and compile a game below ``folder``; the same seed gives the same game."""
    textworld = load_textworld()
    from textworld.generator import compile_game as compile_textworld

    options = textworld.GameOptions()
    options.seeds = game.seed
    if isinstance(game, House):
        options.kb = _knowledge()
    options.path = str(folder / f"game-{game.seed}.z8")
    options.force_recompile = True
    return Path(compile_textworld(game.build(options), options))
