"""Malformed calls, as models write them."""

from __future__ import annotations

import json
import random
from typing import Any

Call = tuple[str, str]
"""Name of a tool, and its arguments as text."""

_WRONG_TOOL = {
    "take": ("pick_up", "grab", "get"),
    "put_on": ("place", "put", "drop_on"),
    "insert": ("put_in", "place"),
    "go": ("move", "walk", "walk_to"),
    "open": ("open_door", "open_container", "use"),
    "unlock": ("use_key", "use"),
    "examine": ("read", "inspect", "look_at"),
    "cook": ("heat", "fry", "use_appliance"),
    "cut": ("slice", "use_knife"),
    "close": ("shut", "close_container"),
    "look": ("look_around", "observe"),
    "inventory": ("check_inventory", "items"),
    "prepare_meal": ("prepare", "make_meal"),
    "eat": ("consume", "eat_meal"),
}
_WRONG_FIELD = {
    "object": ("item", "target", "name", "thing"),
    "from": ("source", "location"),
    "onto": ("on", "target", "to"),
    "into": ("in", "container"),
    "direction": ("way", "to", "dir"),
    "key": ("with", "tool"),
    "appliance": ("with", "device"),
    "how": ("method", "style", "action"),
}
_PARTICIPLE = {"chop": "chopped", "slice": "sliced", "dice": "diced"}


def malform_call(call: Call, kind: str, rng: random.Random) -> Call:
    """Return a malformed call: an unknown ``tool``, invalid ``json``, or wrong ``names`` or ``value``."""
    name, raw = call
    arguments = json.loads(raw)
    if kind == "tool":
        return rng.choice(_WRONG_TOOL[name]), raw
    if kind == "json":
        return name, _break_json(arguments, raw, rng)
    if kind == "names":
        return name, json.dumps(_rename_argument(arguments, rng))
    return name, json.dumps(_change_value(arguments, rng))


def _break_json(arguments: dict[str, Any], raw: str, rng: random.Random) -> str:
    pairs = ", ".join(f"{key}={value}" for key, value in arguments.items()) or "none"
    forms = (
        raw[:-1],
        repr(arguments) if arguments else "{'}",
        pairs,
        f"```json\n{raw}\n```",
        raw.replace('"', "'") + ";",
    )
    return rng.choice(forms)


def _rename_argument(arguments: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    if not arguments:
        return {rng.choice(("target", "room", "object_name")): "all"}
    field = rng.choice(sorted(arguments))
    return {
        (rng.choice(_WRONG_FIELD[key]) if key == field else key): value for key, value in arguments.items()
    }


def _change_value(arguments: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    out = dict(arguments)
    if not out:
        return {rng.choice(("detail", "verbose")): "yes"}
    if "direction" in out:
        out["direction"] = rng.choice((out["direction"][0], f"{out['direction']}ward", "forward", "back"))
    elif "how" in out:
        out["how"] = _PARTICIPLE[out["how"]]
    elif "appliance" in out:
        out["appliance"] = f"the {out['appliance'].lower()}"
    else:
        field = rng.choice(sorted(out))
        out[field] = rng.choice((f"{out[field]} 1", out[field].split()[-1] + "s", f"{out[field]} (here)"))
    return out
