"""Declared effects of tools, classification of attempted calls, and keys of effects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentguard.detect.result_classification import ResultReason, classify_result
from agentguard.detect.tool_names import is_write_tool, normalize_tool_name
from agentguard.errors import ConfigError


class EffectClass(StrEnum):
    """Class of a tool's side effects."""

    READ = "read"
    """Changes nothing: the call may be repeated or discarded."""
    WRITE = "write"
    """Adds data: the call must not be repeated, and ``undo`` may undo it."""
    DESTRUCTIVE = "destructive"
    """May change or destroy data: the call must not be repeated, and ``undo`` may not restore everything."""


Undo = Callable[..., Any]
"""Undo function. Its keyword arguments are those of the call, and ``result`` if it has that parameter."""

Reconcile = Callable[..., Any]
"""Reconcile function of a call with unknown outcome. Its keyword arguments are those of the call.

It returns the result if the call took effect, and None if it did not. After an exception the outcome stays
unknown.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEffect:
    """Declared effect of a tool.

    Attributes:
        effect: class of the effect.
        idempotent: whether a repeated call with the same arguments changes nothing more.
        repeatable: whether equal calls in one run are intended, each with its own effect.
        undo: function that undoes a call, if there is one.
        key: names of the arguments that identify an effect; empty means all arguments.
        reconcile: function that determines whether a call with unknown outcome took effect, if there is one.
        timeout_s: seconds after which the guard interrupts a call; None for the guard's default.
    """

    effect: EffectClass
    idempotent: bool = False
    repeatable: bool = False
    undo: Undo | None = None
    key: tuple[str, ...] = ()
    reconcile: Reconcile | None = None
    timeout_s: float | None = None


UNKNOWN_TOOL_EFFECT = ToolEffect(effect=EffectClass.DESTRUCTIVE)
"""Effect of an undeclared tool: the most cautious class, as in the defaults of MCP."""


def from_annotations(annotations: Mapping[str, Any]) -> ToolEffect:
    """Return the effect of the annotations of an MCP tool (revision 2025-06-18, ``ToolAnnotations``).

    A missing hint has the protocol's default: not read-only, destructive, not idempotent. The hints are
    claims of the server; a declaration of the user takes precedence.

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


def read_stated_effect(annotations: Any) -> ToolEffect | None:
    """Return the effect that the annotations of an MCP tool state; None if they state none.

    By the defaults of the protocol each tool is destructive, so a missing hint states no effect.
    """
    if not isinstance(annotations, Mapping):
        return None
    stated = {name: value for name, value in annotations.items() if value is not None}
    try:
        effect = from_annotations(stated)
    except ConfigError:
        return None
    return effect if stated.get("readOnlyHint") is True or "destructiveHint" in stated else None


def is_irreversible_name(tool: str) -> bool:
    """Return whether the name of an undeclared tool has a verb of change or of payment."""
    return is_write_tool(tool) or _PAYMENT_PATTERN.search(normalize_tool_name(tool)) is not None


_PAYMENT_PATTERN = re.compile(
    r"(?:^|_)(?:charge|transfer|purchase|order|withdraw|debit|deposit|wire|submit|execute|deploy)(?:_|$)"
)


def classify_attempt(lower_text: str, *, has_failed: bool | None, runs_once: bool = False) -> AttemptOutcome:
    """Classify the result or the error text of a call.

    - After a timeout or a lost connection, the outcome is unknown.
    - If the call must not run twice, the outcome is also unknown after a server error, or after an exception
      that a tool may raise after it has acted. If the text states a refusal, the call had no effect.
    - After all other errors, the call had no effect.

    Args:
        lower_text: the text in lower case.
        has_failed: whether the call failed; None if unknown.
        runs_once: whether a call must not run twice.
    """
    classification = classify_result(lower_text, flag=has_failed)
    if not classification.is_error:
        return AttemptOutcome.DONE
    head = lower_text[:_MAX_ERROR_HEAD_CHARS]
    if classification.reason is ResultReason.TIMEOUT or _INTERRUPTION_PATTERN.search(head):
        return AttemptOutcome.UNKNOWN
    is_refused = classification.reason in _REFUSAL_REASONS or _REFUSAL_PATTERN.search(head)
    if runs_once and not is_refused and _BREAKDOWN_PATTERN.search(head):
        return AttemptOutcome.UNKNOWN
    return AttemptOutcome.FAILED


class AttemptOutcome(StrEnum):
    """Outcome of an attempted call."""

    DONE = "done"
    FAILED = "failed"
    """The call failed without an effect."""
    UNKNOWN = "unknown"
    """The call may have had its effect."""


_INTERRUPTION_PATTERN = re.compile(
    r"\btime(?:d)?[ -]?out|timeouterror|connection (?:was )?(?:reset|aborted|closed|lost)|broken ?pipe"
    r"|connectionreset|connectionaborted|remoteprotocol|incompleteread|disconnected|\b504\b"
)


_MAX_ERROR_HEAD_CHARS = 400
_REFUSAL_REASONS = frozenset(
    {
        ResultReason.REJECTED,
        ResultReason.DENIED,
        ResultReason.NO_ACTION,
        ResultReason.EXIT_CODE,
        ResultReason.TEST_FAILURE,
    }
)
"""Reasons after which the call may be repeated: a refusal, or a command that ended with a result."""

_REFUSAL_PATTERN = re.compile(
    r"invalid|validation|not[ _]?found|no such|(?:does|do|did|is|are|was|were|has|have)(?: not|n['\u2019]t)\b"
    r"|cannot|can['\u2019]t|unable|must\b|missing|required|unknown|unsupported|expected|already|exists|taken"
    r"|not (?:allowed|permitted|supported|available|enough)|denied|forbidden|unauthori[sz]ed|permission"
    r"|refused|reject|declin|insufficient|duplicate|conflict|exceed|limit|quota|too (?:many|long|large|big)"
    r"|busy|unavailable|overloaded|try again|retry|\b(?:4\d\d|503)\b"
)
"""Words of an error that a tool reports before it acts."""

_BREAKDOWN_PATTERN = re.compile(
    r"\b50[02]\b|internal (?:server )?error|server error|bad gateway"
    r"|\A\W{0,3}(?:error: )?(?:(?:base)?exception|(?:runtime|io|os|system|memory|recursion|attribute|name"
    r"|unboundlocal|zerodivision|overflow|unicodedecode|jsondecode|http|connect|connection|protocol|transport"
    r"|network|stream|read|write|ssl|api|database|operational|internalserver)error)\b"
)
"""Server errors, and exceptions that may occur at any point of a tool's work."""


def _parse_hint(annotations: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = annotations.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"tool annotation {name}: expected true or false, found {type(value).__name__}")
    return value
