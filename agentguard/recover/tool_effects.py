"""What a tool does to the world, and when two calls are the same effect."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentguard.detect.step_facts import canonicalize_json
from agentguard.errors import ConfigError


class EffectClass(StrEnum):
    """What repeating or leaving a call behind would mean."""

    READ = "read"
    """Changes nothing: may be repeated and forgotten."""
    WRITE = "write"
    """Adds something: must not be repeated; whether it can be undone is up to ``undo``."""
    DESTRUCTIVE = "destructive"
    """May change or destroy what was there: must not be repeated, and an undo may not bring all back."""


Undo = Callable[..., Any]
"""Called with the arguments of the call as keywords, and ``result=`` if it takes that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEffect:
    """What is declared of a tool.

    Attributes:
        effect: its class.
        idempotent: calling it again with the same arguments changes nothing more.
        undo: undoes a call, if that can be done.
        key: the arguments that tell one effect from another; empty means all of them.
    """

    effect: EffectClass
    idempotent: bool = False
    undo: Undo | None = None
    key: tuple[str, ...] = ()


UNKNOWN_TOOL_EFFECT = ToolEffect(effect=EffectClass.DESTRUCTIVE)
"""A tool of which nothing is known: the cautious reading, which is that of MCP's defaults too."""


def from_annotations(annotations: Mapping[str, Any]) -> ToolEffect:
    """Read the annotations of an MCP tool (Model Context Protocol, revision 2025-06-18, ``ToolAnnotations``).

    A hint that is absent has the protocol's default: not read-only, destructive, not idempotent. The hints
    are the server's own word; what a user declares outranks them.

    Raises:
        ConfigError: a hint is neither true nor false.
    """
    read_only = _parse_hint(annotations, "readOnlyHint", default=False)
    destructive = _parse_hint(annotations, "destructiveHint", default=True)
    idempotent = _parse_hint(annotations, "idempotentHint", default=False)
    if read_only:
        return ToolEffect(effect=EffectClass.READ, idempotent=True)
    effect = EffectClass.DESTRUCTIVE if destructive else EffectClass.WRITE
    return ToolEffect(effect=effect, idempotent=idempotent)


def compute_effect_key(tool: str, arguments: Mapping[str, Any], key_arguments: tuple[str, ...] = ()) -> str:
    """SHA-256, in hex, over a tool and its canonical arguments.

    Keys are sorted and ``1.0`` is ``1``, so that the same call written by a model in another way is the same
    effect. ``of`` names the arguments that count; one that is absent from a call counts as null.
    """
    chosen = {name: arguments.get(name) for name in key_arguments} if key_arguments else arguments
    plain = chosen if _CANONICAL_TYPES.issuperset(map(type, chosen.values())) else _normalize_numbers(chosen)
    return hashlib.sha256(f"{tool}\0{canonicalize_json(plain)}".encode(errors="surrogatepass")).hexdigest()


_CANONICAL_TYPES = frozenset({str, int, bool, type(None)})
"""Types of values that are even as they are; most arguments are of these alone."""


def _normalize_numbers(value: Any) -> Any:
    """Whole floats as integers, at every depth."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize_numbers(item) for item in value]
    return value


def _parse_hint(annotations: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = annotations.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"tool annotation {name}: expected true or false, found {type(value).__name__}")
    return value
