"""Seeded extraction tasks for `acceptance.py`: short order texts from our own templates, and their fields."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from agentguard.recover import AcceptanceTest, PatternRule, SchemaRule, TaskValueRule

_NAMES = (
    "Ada Moss",
    "Paul Gray",
    "Ines Roth",
    "Tom Field",
    "Lena Park",
    "Omar Reed",
    "Kim Stone",
    "Eva Lund",
)
_GOODS = ("lamps", "chairs", "mugs", "books", "desks", "clocks", "plates", "towels", "shelves", "pens")
_CITIES = ("Oslo", "Lyon", "Turin", "Graz", "Porto", "Ghent", "Malmo", "Krakow", "Cork", "Basel")
_TEXTS = (
    "{name} from {city} orders {count} {goods}. The order number is {order}.",
    "Order number {order}: {count} {goods} for {name}, to be sent to {city}.",
    "Please send {count} {goods} to {city}. The customer is {name}, the order number {order}.",
    "{name} wants {count} {goods} in {city}; see order number {order}.",
)
_HARD = (
    "{name} from {city} first asked for {other} {goods}, then made it {count}. The order number is {order}.",
    "Order number {order}, in place of {old}: {count} {goods} for {name}, not to {elsewhere} but to {city}.",
)
FIELDS = ("order", "name", "city", "goods", "count")
SCHEMA = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "pattern": "^[0-9]{4}$"},
        "name": {"type": "string", "maxLength": 24},
        "city": {"type": "string", "maxLength": 16},
        "goods": {"type": "string", "maxLength": 16},
        "count": {"type": "string", "pattern": "^[0-9]{1,3}$"},
    },
    "required": list(FIELDS),
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Extraction:
    """A text and its fields; only the evaluator reads ``gold``."""

    text: str
    gold: Mapping[str, str]


def extraction(seed: int, *, hard: float) -> Extraction:
    """Return the task of a seed; a share ``hard`` of the tasks mentions a second value, which is wrong."""
    rng = random.Random(f"extraction:{seed}")
    order, old = rng.sample(range(1000, 10_000), 2)
    count, other = rng.sample(range(2, 100), 2)
    city, elsewhere = rng.sample(_CITIES, 2)
    gold = {
        "order": str(order),
        "name": rng.choice(_NAMES),
        "city": city,
        "goods": rng.choice(_GOODS),
        "count": str(count),
    }
    text = rng.choice(_HARD if rng.random() < hard else _TEXTS)
    return Extraction(text.format(**gold, old=old, other=other, elsewhere=elsewhere), gold)


def rules() -> AcceptanceTest:
    """Return the rules that a user can declare without knowledge of the answers.

    The rules check the JSON form, the order number as the text marks it, and that the text contains each
    other value.
    They cannot separate the correct value from a second one, so they accept some wrong answers.
    """
    return AcceptanceTest(
        SchemaRule(SCHEMA),
        TaskValueRule("order", r"(?i)order number (?:is )?([0-9]+)"),
        *(TaskValueRule(field) for field in ("name", "city", "goods", "count")),
        PatternRule(r"^[A-Z][a-z]+ [A-Z][a-z]+$", field="name"),
        PatternRule(r"^[a-z]+$", field="goods"),
    )
