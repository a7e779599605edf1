"""Parser of the game's text: rooms, exits, things. It is the agent's only source of knowledge."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

COMPASS = ("north", "south", "east", "west")
CONTAINERS = (
    "fridge", "toolbox", "cabinet", "cupboard", "writing desk", "jewelry box", "chest", "wardrobe", "trunk",
    "drawer",
)  # fmt: skip
APPLIANCES = ("stove", "oven", "BBQ")
_STATE_WORDS = re.compile(r"\b(raw|fried|roasted|grilled|sliced|chopped|diced|burned|uncut)\s+")
_SUCCESS = re.compile(
    r"^(You (take|pick up|open|close|unlock|put|slice|chop|dice|fried|roasted|grilled|eat|are carrying)"
    r"|Adding the meal)"
)


@dataclass(slots=True, kw_only=True)
class ParsedObservation:
    """One parsed observation.

    Attributes:
        room: the described room, or None.
        exits: by direction, the door (None if there is no door) and the state of the door.
        things: furniture on or in which a portable thing is (None: the floor), by name.
        containers: containers mentioned.
        appliances: appliances mentioned.
        revealed: things that became visible when something was opened.
        refused: whether an action was not executed.
    """

    text: str
    room: str | None = None
    exits: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    things: dict[str, str | None] = field(default_factory=dict)
    containers: tuple[str, ...] = ()
    appliances: tuple[str, ...] = ()
    revealed: tuple[str, ...] = ()
    refused: bool = False

    @property
    def over(self) -> bool:
        """Return whether the game reports its end."""
        return "*** " in self.text

    @property
    def first_line(self) -> str:
        """First line, for quotation."""
        return self.text.split("\n")[0].strip()


def parse_observation(text: str) -> ParsedObservation:
    """Parse one observation."""
    observation = ParsedObservation(text=text)
    header = re.search(r"-= (.+?) =-", text)
    if header:
        _read_room(observation, header.group(1).lower())
    elif match := re.search(r"revealing (.+)\.", text):
        observation.revealed = split_names(match.group(1))
    elif not text.startswith("Recipe") and "start reading" not in text:
        observation.refused = not _SUCCESS.match(text)
    return observation


def _read_room(observation: ParsedObservation, room: str) -> None:
    observation.room, text = room, observation.text
    rest = text
    for state, door, way in re.findall(
        r"(closed|open|locked) ([\w -]+?) leading (north|south|east|west)", text
    ):
        observation.exits[way] = (door, state)
        rest = rest.replace(f"{state} {door} leading {way}", "")
    for way in re.findall(r"\b(north|south|east|west)\b", rest):
        observation.exits.setdefault(way, (None, "open"))
    observation.containers = tuple(name for name in CONTAINERS if re.search(rf"\b{name}\b", text))
    observation.appliances = tuple(name for name in APPLIANCES if re.search(rf"\b{name}\b", text))
    for holder, items in re.findall(r"On the ([\w -]+?) you (?:can )?(?:see|make out) ([^.!\n]+)", text):
        observation.things.update(dict.fromkeys(split_names(items), holder))
    for items, holder in re.findall(r"[Yy]ou (?:can )?(?:see|make out) ([^.!\n]+?) on the ([\w -]+)", text):
        if not items.startswith("a " + holder):
            observation.things.update(dict.fromkeys(split_names(items), holder.strip()))
    for holder, items in re.findall(r"[Tt]he ([\w -]+?) contains ([^.!\n]+)", text):
        observation.things.update(dict.fromkeys(split_names(items), holder))
    for items in re.findall(r"There (?:is|are) ([^.!\n]+?) on the floor", text):
        observation.things.update(dict.fromkeys(split_names(items)))


def split_names(items: str) -> tuple[str, ...]:
    """Split ``"a raw carrot, some salt and a knife"`` into names without articles and state words."""
    out = []
    for part in re.split(r", | and ", items):
        match = re.match(r"(?:a|an|some|the) (.+)", part.strip())
        if match:
            out.append(_STATE_WORDS.sub("", match.group(1) + " ").strip())
    return tuple(out)


def parse_recipe(text: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return ``(ingredients, ((verb, ingredient), …))`` of the page of a cookbook."""
    _, _, tail = text.partition("Ingredients:")
    ingredient_lines, _, directions = tail.partition("Directions:")
    steps = re.findall(r"(chop|slice|dice|fry|roast|grill) the ([\w ]+)", directions)
    return tuple(line.strip() for line in ingredient_lines.splitlines() if line.strip()), tuple(steps)
