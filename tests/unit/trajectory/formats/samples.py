"""The hand-written samples of every format, and mutations of them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentguard.trajectory.formats.base import UnreadableRecord, formats
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record

SAMPLES = Path(__file__).resolve().parents[3] / "contract" / "samples"
JUNK = (None, True, -1, 2.5, "", "x", "[", "\u0000", [], [[]], {}, {"x": {}}, [None], 10**15, "3.2")


def sample(name: str) -> Any:
    """Return a parsed sample of JSON."""
    return json.loads((SAMPLES / name).read_text(encoding="utf-8"))


def lines(name: str) -> list[Any]:
    """Return a parsed sample of JSON Lines."""
    return [json.loads(line) for line in (SAMPLES / name).read_text(encoding="utf-8").splitlines()]


def records(path: Path) -> list[Record]:
    """Return all runs of a path; fail if one is broken."""
    found = list(read(path))
    broken = [one for one in found if isinstance(one, UnreadableRecord)]
    assert not broken, broken[0].error
    return [one for one in found if isinstance(one, Record)]


def parse(format: str, value: Any) -> Record:
    """Return the only run in a parsed record."""
    (record,) = formats().get(format).parse(value, name="name")
    return record


def spoilt(value: Any, *, count: int, seed: int = 7) -> Iterator[Any]:
    """Generate copies of a value with one to three replaced, removed or repeated places, at any depth."""
    rng = random.Random(seed)
    for _ in range(count):
        spoiling = copy.deepcopy(value)
        for _ in range(rng.randint(1, 3)):
            _spoil(spoiling, rng)
        yield spoiling


def _spoil(value: Any, rng: random.Random) -> None:
    places = list(_places(value))
    if not places:
        return
    parent, key = rng.choice(places)
    kind = rng.randrange(4)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif kind == 2:
        parent[key] = [parent[key]]
    else:
        parent[key] = copy.deepcopy(rng.choice(JUNK))  # the next mutation may change it in place


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    stack = [value]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            yield node, key
            stack.append(node[key])
