"""Modes of a replay: the calls that are live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentguard.bundles.bundle import Bundle
from agentguard.errors import ConfigError
from agentguard.recover.tool_effects import EffectClass

ReplayEdit = str | Mapping[str, Any]
"""Answer of a model: its text, a message of the chat API, or a recorded HTTP response."""


class ReplayMode(StrEnum):
    """Source of the model's answers and of the tools' results in a replay.

    - ``sealed``: the bundle has both; the network is blocked.
    - ``scripted``: like ``sealed``, with the answers in recorded order, whatever the request is.
    - ``decisions``: the bundle has the answers; the tools are live and must be reads.
    - ``tools``: the model is live; the bundle has the results.
    - ``from-call``: the bundle has both up to a model call. Later the model and the reads are live.
    """

    SEALED = "sealed"
    SCRIPTED = "scripted"
    DECISIONS = "decisions"
    TOOLS = "tools"
    FROM_CALL = "from-call"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayScope:
    """Calls that are live in one replay.

    Attributes:
        mode: the mode.
        first_live_call: number of the first live model call; None if no model call is live.
        reads: names of the tools that are declared as reads.
        edited_call: number of the model call with an edited answer; None without an edit.
        edited_answer: its answer.
    """

    mode: ReplayMode
    first_live_call: int | None = None
    reads: frozenset[str] = field(default_factory=frozenset)
    edited_call: int | None = None
    edited_answer: Any = None

    @property
    def is_offline(self) -> bool:
        """True if no call is live."""
        return self.mode in (ReplayMode.SEALED, ReplayMode.SCRIPTED)

    @property
    def has_live_model(self) -> bool:
        """True if a model call can be live."""
        return self.first_live_call is not None

    def is_live_model_call(self, number: int) -> bool:
        """Return whether the model call with this number is live."""
        return self.first_live_call is not None and number >= self.first_live_call

    def is_live_tool(self, name: str) -> bool:
        """Return whether a tool can be live; a tool with effects never is."""
        return self.mode in (ReplayMode.DECISIONS, ReplayMode.FROM_CALL) and name in self.reads

    def has_begun(self, model_calls: int) -> bool:
        """Return whether live tools are called after this number of model calls."""
        begin = self.edited_call if self.edited_call is not None else self.first_live_call
        return begin is None or model_calls > begin


def build_scope(
    bundle: Bundle, mode: ReplayMode | str, from_call: int | None, edit: ReplayEdit | None
) -> ReplayScope:
    """Return the scope of a replay. Raises ConfigError if the options do not fit the bundle."""
    if mode not in list(ReplayMode):
        raise ConfigError(f"replay: the mode {mode!r} is unknown; the modes are {', '.join(ReplayMode)}")
    chosen = ReplayMode(mode)
    if (chosen is ReplayMode.FROM_CALL) != (from_call is not None):
        raise ConfigError("replay: only the mode from-call takes and needs the number of a model call")
    if edit is not None and from_call is None:
        raise ConfigError("replay: an edit needs the mode from-call")
    if from_call is not None and not 0 <= from_call < len(bundle.model_calls):
        raise ConfigError(
            f"replay: there is no model call {from_call}; the bundle has {len(bundle.model_calls)}"
        )
    if chosen is ReplayMode.SEALED and not bundle.has_requests:
        raise ConfigError(
            "replay: the bundle has no requests of the model, because it was written from the steps of a run;"
            " use the mode scripted, which returns the answers in recorded order"
        )
    reads = frozenset(call.name for call in bundle.tool_calls if call.effect == EffectClass.READ.value)
    others = {call.name: call.effect for call in bundle.tool_calls if call.name not in reads}
    if chosen is ReplayMode.DECISIONS and others:
        names = ", ".join(f"{name} ({effect or 'no class'})" for name, effect in sorted(others.items()))
        raise ConfigError(f"replay: the mode decisions calls tools; not declared as read: {names}")
    first = 0 if chosen is ReplayMode.TOOLS else from_call
    if from_call is not None and edit is not None:
        first = from_call + 1
    return ReplayScope(
        mode=chosen,
        first_live_call=first,
        reads=reads,
        edited_call=from_call if edit is not None else None,
        edited_answer=edit,
    )
