"""Tools of the agent: JSON Schemas, validation of calls, and translation into game commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Args = Mapping[str, str]

_THING = "Name of the thing, exactly as the game writes it."
_TOOLS: dict[str, tuple[str, dict[str, Any], Callable[[Args], str]]] = {
    "look": ("Describe the room you are in.", {}, lambda _: "look"),
    "inventory": ("List what you are carrying.", {}, lambda _: "inventory"),
    "examine": ("Look closely at one thing.", {"object": _THING}, lambda a: f"examine {a['object']}"),
    "go": (
        "Walk through an exit of the room.",
        {"direction": ["north", "south", "east", "west"]},
        lambda a: f"go {a['direction']}",
    ),
    "open": ("Open a door or a container.", {"object": _THING}, lambda a: f"open {a['object']}"),
    "close": ("Close a door or a container.", {"object": _THING}, lambda a: f"close {a['object']}"),
    "unlock": (
        "Unlock a door or a container with a key you carry.",
        {"object": _THING, "key": "Name of the key."},
        lambda a: f"unlock {a['object']} with {a['key']}",
    ),
    "take": (
        "Pick something up; `from` names what it lies on or in, if it is not on the floor.",
        {"object": _THING, "from?": "Name of the furniture."},
        lambda a: f"take {a['object']}" + (f" from {a['from']}" if "from" in a else ""),
    ),
    "put_on": (
        "Put something you carry on a piece of furniture.",
        {"object": _THING, "onto": "Name of the furniture."},
        lambda a: f"put {a['object']} on {a['onto']}",
    ),
    "insert": (
        "Put something you carry into a container.",
        {"object": _THING, "into": "Name of the container."},
        lambda a: f"insert {a['object']} into {a['into']}",
    ),
    "cook": (
        "Cook food you carry. The stove fries, the oven roasts, the BBQ grills.",
        {"object": _THING, "appliance": ["stove", "oven", "BBQ"]},
        lambda a: f"cook {a['object']} with {a['appliance']}",
    ),
    "cut": (
        "Cut food you carry; you need to carry the knife.",
        {"object": _THING, "how": ["chop", "slice", "dice"]},
        lambda a: f"{a['how']} {a['object']} with knife",
    ),
    "prepare_meal": (
        "Put the finished ingredients you carry together into a meal; works in the kitchen only.",
        {},
        lambda _: "prepare meal",
    ),
    "eat": ("Eat something you carry.", {"object": _THING}, lambda a: f"eat {a['object']}"),
}
HOUSE = ("look", "inventory", "examine", "go", "open", "close", "unlock", "take", "put_on", "insert")
KITCHEN = (
    "look", "inventory", "examine", "go", "open", "close", "take", "put_on",
    "cook", "cut", "prepare_meal", "eat",
)  # fmt: skip


def build_schemas(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the tools called ``names`` in the format of OpenAI chat completions."""
    out = []
    for name in names:
        description, fields, _ = _TOOLS[name]
        function = {"name": name, "description": description, "parameters": _parameters(fields)}
        out.append({"type": "function", "function": function})
    return out


def translate_call(names: tuple[str, ...], name: str, raw: str) -> tuple[str | None, str]:
    """Return ``(game command, "")`` for a valid call, or ``(None, error message)``."""
    if name not in names:
        return None, f"Error: unknown tool '{name}'. Available tools: {', '.join(names)}."
    try:
        arguments = json.loads(raw)
    except json.JSONDecodeError as error:
        location = f"line {error.lineno} column {error.colno}"
        return None, f"Error: the arguments of '{name}' are not valid JSON ({error.msg} at {location})."
    _, fields, make = _TOOLS[name]
    violation = _violation(_parameters(fields), arguments)
    if violation:
        return None, f"Error: invalid arguments for '{name}': {violation}."
    return make(arguments), ""


_PHRASES = (
    (r"take (?P<object>.+) from (?P<from>.+)", "take"),
    (r"put (?P<object>.+) on (?P<onto>.+)", "put_on"),
    (r"insert (?P<object>.+) into (?P<into>.+)", "insert"),
    (r"unlock (?P<object>.+) with (?P<key>.+)", "unlock"),
    (r"cook (?P<object>.+) with (?P<appliance>stove|oven|BBQ)", "cook"),
    (r"(?P<how>chop|slice|dice) (?P<object>.+) with .+", "cut"),
    (r"prepare meal", "prepare_meal"),
    (r"go (?P<direction>north|south|east|west)", "go"),
    (r"(?P<tool>look|inventory)", ""),
    (r"(?P<tool>examine|open|close|take|eat) (?P<object>.+)", ""),
)


def parse_command(names: tuple[str, ...], text: str) -> tuple[str, str] | None:
    """Return the call of a game command as name and arguments, or None if no offered tool can do it."""
    for pattern, name in _PHRASES:
        match = re.fullmatch(pattern, text.strip(), re.IGNORECASE)
        if match:
            arguments = {
                k: v.lower() if k in ("direction", "how") else v for k, v in match.groupdict().items()
            }
            tool = arguments.pop("tool", name).lower()
            return (tool, json.dumps(arguments)) if tool in names else None
    return None


def parse_arguments(raw: str) -> dict[str, Any] | None:
    """Return the arguments of a call if their text is a JSON object, else None."""
    try:
        value = json.loads(raw)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _parameters(fields: Mapping[str, str | list[str]]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for field, about in fields.items():
        kind = {"enum": about} if isinstance(about, list) else {"description": about}
        properties[field.rstrip("?")] = {"type": "string", **kind}
    return {
        "type": "object",
        "properties": properties,
        "required": [field for field in fields if not field.endswith("?")],
        "additionalProperties": False,
    }


def _violation(schema: Mapping[str, Any], arguments: Any) -> str:
    """Return the first violation of ``schema`` by ``arguments``, or an empty string."""
    if not isinstance(arguments, dict):
        return "expected an object"
    properties = schema["properties"]
    for field in arguments:
        if field not in properties:
            return f"unexpected property '{field}'"
    for field in schema["required"]:
        if field not in arguments:
            return f"'{field}' is a required property"
    for field, value in arguments.items():
        if not isinstance(value, str):
            return f"'{field}' must be a string"
        choices = properties[field].get("enum")
        if choices and value not in choices:
            return f"'{value}' is not one of {choices}"
    return ""
