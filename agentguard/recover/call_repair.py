"""Mechanical repairs of tool calls, and their application to a step.

Forward recovery corrects a state and continues from it, where a rollback would lose work (B. Randell,
P. A. Lee, P. C. Treleaven, "Reliability issues in computing system design", ACM Computing Surveys 10(2),
1978; T. Anderson, P. A. Lee, "Fault Tolerance: Principles and Practice", 1981). It needs the error and the
correct value. So the functions here do not guess: they repair a call only if its schema permits exactly one
reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import canonicalize_json
from agentguard.errors import RecoveryError
from agentguard.recover.actions import Repair
from agentguard.recover.schema_coercion import list_readings, resolve_reference
from agentguard.trajectory.model import Step, ToolCall, ToolSpec, Trajectory

_T = TypeVar("_T")

_MIN_NAME_LENGTH = 4
"""Minimum length for typo correction; a shorter name with another letter is often another word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedCall:
    """Repaired call.

    Attributes:
        call: the call after the repair.
        changes: changes as clauses for the agent.
    """

    call: ToolCall
    changes: tuple[str, ...]


def repair_turn(turn: Step, run: Trajectory) -> tuple[tuple[Repair, ...], str] | None:
    """Repair all calls of a turn whose tools have not run.

    Args:
        turn: the turn with its step index.
        run: the run of the turn, with the tools and their schemas.

    Returns:
        The repairs and a description of them for the agent; None if no call violates its schema, or if a call
        cannot be repaired. A turn is never repaired in part.
    """
    if not run.tools:
        return None
    view = RunView.from_trajectory(replace(run, steps=(), branches=(), task="", system_prompts={}))
    repairs: list[Repair] = []
    changes: list[str] = []
    for index, call in enumerate(turn.tool_calls):
        if call.name in view.tools and call.arguments is not None and not view.get_violations(call):
            continue
        repaired = repair_call(call, run.tools)
        if repaired is None or view.get_violations(repaired.call):
            return None
        field = f"tool_calls[{index}]"
        if repaired.call.name != call.name:
            repairs.append(Repair(step=turn.index, field=f"{field}.name", text=repaired.call.name))
        if repaired.call.arguments != call.arguments:
            repairs.append(
                Repair(step=turn.index, field=field, text=canonicalize_json(repaired.call.arguments))
            )
        changes += [f"{repaired.call.name}: {change}" for change in repaired.changes]
    return (tuple(repairs), "; ".join(changes)) if repairs else None


def repair_call(call: ToolCall, tools: Sequence[ToolSpec]) -> RepairedCall | None:
    """Return the repaired call; None if there is not exactly one reading.

    The repaired call may still violate its schema.
    """
    name = match_name(call.name, [tool.name for tool in tools])
    spec = next((tool for tool in tools if tool.name == name), None)
    if spec is None:
        return None
    changes = [] if name == call.name else [f"the tool name {call.name!r} was corrected to {name!r}"]
    object_arguments = call.arguments
    if object_arguments is None:
        object_arguments = _extract_object(call.raw_arguments or "")
        if object_arguments is None:
            return None
        changes.append("the arguments were extracted from the surrounding text")
    arguments = _repair_arguments(object_arguments, spec.parameters, changes)
    if arguments is None:
        return None
    repaired = replace(call, name=spec.name, arguments=arguments, raw_arguments=None)
    return RepairedCall(call=repaired, changes=tuple(changes))


def apply_repairs(turn: Step, repairs: Iterable[Repair]) -> Step:
    """Return the step with the repairs applied.

    Raises:
        RecoveryError: the step lacks a field, or arguments are not a JSON object.
    """
    for repair in repairs:
        turn = _apply_repair(turn, repair)
    return turn


def match_name(name: str, known_names: Sequence[str]) -> str | None:
    """Return the only known name that equals ``name`` up to case, punctuation or one typo, else None."""
    if name in known_names:
        return name
    plain = _normalize_name(name)
    alike = [one for one in known_names if _normalize_name(one) == plain]
    if not alike and len(plain) >= _MIN_NAME_LENGTH:
        alike = [
            one
            for one in known_names
            if len(_normalize_name(one)) >= _MIN_NAME_LENGTH
            and is_one_typo_apart(plain, _normalize_name(one))
        ]
    return alike[0] if len(alike) == 1 else None


def is_one_typo_apart(a: str, b: str) -> bool:
    """Return whether two names differ by one insertion, deletion, change or swap (Damerau, 1964)."""
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    rest_a, rest_b = a[start:], b[start:]
    if len(a) != len(b):
        return rest_a[1:] == rest_b if len(a) > len(b) else rest_b[1:] == rest_a
    swapped = rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]
    return rest_a[1:] == rest_b[1:] or swapped


def _normalize_name(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _extract_object(text: str) -> dict[str, Any] | None:
    """Return the object in a text, a code fence or a JSON string; None if there is no object."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        bare = bare.strip("`").removeprefix("json").strip()
    try:
        value = orjson.loads(bare)
        value = orjson.loads(value) if isinstance(value, str) else value
    except (orjson.JSONDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _repair_arguments(
    arguments: Mapping[str, Any], schema: Mapping[str, Any], changes: list[str]
) -> dict[str, Any] | None:
    """Convert the arguments to their schema and append to ``changes``; return None if they are ambiguous."""
    top = resolve_reference(schema, schema)
    properties: Mapping[str, Any] = top.get("properties") or {}
    repaired: dict[str, Any] = {}
    for name, value in arguments.items():
        matched = _match_argument_name(name, arguments, properties)
        if matched in repaired:
            return None
        if matched != name:
            changes.append(f"the argument name {name!r} was corrected to {matched!r}")
        possible = list_readings(value, properties[matched], schema) if matched in properties else [value]
        if len(possible) > 1:
            return None
        repaired[matched] = possible[0] if possible else value
        if not _is_same_json(repaired[matched], value):
            changes.append(
                f"{matched} was changed from {_format_json(value)} to {_format_json(repaired[matched])}"
            )
    for name in top.get("required") or ():
        rule = resolve_reference(properties.get(name) or {}, schema)
        if name not in repaired and "default" in rule:
            repaired[name] = rule["default"]
            changes.append(f"{name} was missing and was set to its default, {_format_json(rule['default'])}")
    return repaired


def _match_argument_name(name: str, arguments: Mapping[str, Any], properties: Mapping[str, Any]) -> str:
    if name in properties:
        return name
    alike = [
        one for one in properties if _normalize_name(one) == _normalize_name(name) and one not in arguments
    ]
    return alike[0] if len(alike) == 1 else name


def _apply_repair(turn: Step, repair: Repair) -> Step:
    field, text = repair.field, repair.text
    if field == "content":
        return replace(turn, content=text)
    list_name, _, rest = field.partition("[")
    position, _, part = rest.partition("]")
    at = int(position) if position.isdigit() else -1
    if list_name == "observations" and part == "" and 0 <= at < len(turn.observations):
        observation = turn.observations[at]
        corrected = replace(
            observation,
            content=text,
            is_error=False,
            extra={**observation.extra, "original": observation.content},
        )
        return replace(turn, observations=_replace_at(turn.observations, at, corrected))
    if list_name == "tool_calls" and part in ("", ".name") and 0 <= at < len(turn.tool_calls):
        call = turn.tool_calls[at]
        renamed = replace(call, name=text) if part else None
        repaired = renamed or replace(call, arguments=_parse_object(field, text), raw_arguments=None)
        return replace(turn, tool_calls=_replace_at(turn.tool_calls, at, repaired))
    raise RecoveryError(f"repair: step {turn.index} has no field {field!r}")


def _replace_at(items: tuple[_T, ...], index: int, item: _T) -> tuple[_T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _parse_object(field: str, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise RecoveryError(f"repair: the text for {field!r} is not a JSON object")
    return value


def _is_same_json(a: Any, b: Any) -> bool:
    """Return whether two values are the same JSON: ``1`` is not ``True``, and a number is not its text."""
    return type(a) is type(b) and canonicalize_json(a) == canonicalize_json(b)


def _format_json(value: Any) -> str:
    text = canonicalize_json(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def describe_repair(step: Step, repair: Repair) -> dict[str, str]:
    """Return the annotation of a repair with the keys ``field``, ``original`` and ``repaired``."""
    if repair.field.endswith(".name"):
        index = int(repair.field.partition("[")[2].partition("]")[0])
        original = step.tool_calls[index].name
    else:
        original = step.text(repair.field)
    return {"field": repair.field, "original": original, "repaired": repair.text}


def diff_calls(original: Step, changed: Step) -> list[dict[str, str]]:
    """Return the differences between the calls of two turns; each has the keys of `describe_repair`."""
    differences = []
    for index, (old, new) in enumerate(zip(original.tool_calls, changed.tool_calls, strict=False)):
        field = f"tool_calls[{index}]"
        if old.name != new.name:
            differences.append({"field": f"{field}.name", "original": old.name, "repaired": new.name})
        if old.arguments != new.arguments:
            differences.append(
                {"field": field, "original": original.text(field), "repaired": changed.text(field)}
            )
    return differences


def annotate_step(step: Step, annotations: Mapping[str, Any]) -> Step:
    """Return the step with the annotations added to ``step.extra["agentguard"]``."""
    if not annotations:
        return step
    return replace(
        step, extra={**step.extra, "agentguard": {**step.extra.get("agentguard", {}), **annotations}}
    )
