"""Edits of a guard to a conversation, as plain data for other processes.

Another process may handle the next request of a client. It gets the client's history, but does not know the
rolled back turns, the guard's messages and the disabled tools. The edits contain them and identify turns by
key. A conversation without edits has no record.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentguard.errors import FormatError
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import Conversation, Item, extend_key, resolve_items
from agentguard.recover.budget import BudgetUsage
from agentguard.recover.effect_store import Effect

MAX_SHARED_REQUESTS = 1000
"""Maximum number of requests of a conversation whose history is shared with other processes."""


@dataclass(slots=True, kw_only=True)
class HistoryEdits:
    """Edits of one conversation.

    Attributes:
        abandoned_turns: keys of turns that were rolled back.
        guard_items_by_turn: guard messages directly before a turn, by turn key.
        pending_guard_items: guard messages for the next request.
        disabled_tools: tools that a recovery disabled.
        budget_usage: used part of the recovery budget.
        ledger_location: run and branch of the run's effects in the store; None without stored effects.
        completed_effects: the effects that have completed.
        history: the client's items, if the client names a response instead of resending them.
        shared_history_keys: keys under which other processes find that history.
        root_response_id: ID of the last response of a history before the conversation, on the server.
    """

    abandoned_turns: frozenset[str] = frozenset()
    guard_items_by_turn: dict[str, list[Item]] = field(default_factory=dict)
    pending_guard_items: list[Item] = field(default_factory=list)
    disabled_tools: frozenset[str] = frozenset()
    budget_usage: BudgetUsage = field(default_factory=BudgetUsage)
    ledger_location: tuple[str, str] | None = None
    completed_effects: tuple[Effect, ...] = ()
    history: list[Item] = field(default_factory=list)
    shared_history_keys: tuple[str, ...] = ()
    root_response_id: str | None = None


def build_turn_key(adapter: ApiAdapter, items: Sequence[Item]) -> str:
    """Return the key of a turn; tool results do not change it."""
    key = extend_key(b"turn", [item for item in items if not adapter.is_result(item)], adapter.build_item_key)
    return key.hex()


def build_shared_state(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item], body: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the state that another process needs to continue a conversation; None if its history suffices.

    In addition to the edits, the state contains:

    - ``effects``: the location of the effect ledger.
    - ``items``: the items since the last request, if the client continues by response ID. They are stored
      under the last key of ``chain``.
    """
    data, new_items = (
        serialize_edits(conversation, adapter, history),
        _select_new_items(conversation, adapter, history, body),
    )
    ledger_location = (
        None if conversation.is_finished else conversation.session.ledger.location
    )  # a finished conversation continues with another run
    if data is None and new_items is None and ledger_location is None and not conversation.version:
        return None
    data = data or {"left": [], "notes": [], "told": [], "withheld": [], "spent": asdict(BudgetUsage())}
    if ledger_location is not None:
        data["effects"] = list(ledger_location)
    if new_items is not None:
        data |= {
            "chain": list(conversation.shared_history_keys or ()),
            "root": conversation.root_response_id,
            "items": new_items,
        }
    return data


def _select_new_items(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item], body: Mapping[str, Any]
) -> list[Item] | None:
    """Return the items since the last request; None if the client resends its history or forbids storage."""
    if not adapter.stores_history or conversation.shared_history_keys is None or body.get("store") is False:
        return None
    is_whole_history = body.get("previous_response_id") is None
    if (
        is_whole_history and (conversation.shared_history_keys or any(map(adapter.is_result, history)))
    ) or len(conversation.shared_history_keys) >= MAX_SHARED_REQUESTS:
        conversation.shared_history_keys = None
        return None
    items = [*history, *conversation.answer]
    new_items, conversation.shared_item_count = items[conversation.shared_item_count :], len(items)
    conversation.shared_history_keys = (*conversation.shared_history_keys, secrets.token_hex(16))
    return new_items


def serialize_edits(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item]
) -> dict[str, Any] | None:
    """Return the edits of a conversation as plain data; None if it has no edits."""
    steps_with_items = [step for step in conversation.branch.steps if step.guard_items]
    if not (
        conversation.abandoned_turns
        or steps_with_items
        or conversation.branch.pending_guard_items
        or conversation.disabled_tools
    ):
        return None
    notes = [
        [build_turn_key(adapter, resolve_items(step.items, history)), step.guard_items]
        for step in steps_with_items
    ]
    return {
        "left": sorted(conversation.abandoned_turns),
        "notes": notes,
        "told": conversation.branch.pending_guard_items,
        "withheld": sorted(conversation.disabled_tools),
        "spent": asdict(conversation.session.account.usage),
    }


def parse_edits(data: Mapping[str, Any]) -> HistoryEdits:
    """Return the edits from plain data. Raises FormatError if the data is malformed."""
    try:
        return HistoryEdits(
            abandoned_turns=frozenset(map(str, data["left"])),
            guard_items_by_turn={
                str(name): [dict(item) for item in guard_items] for name, guard_items in data["notes"]
            },
            pending_guard_items=[dict(item) for item in data["told"]],
            disabled_tools=frozenset(map(str, data["withheld"])),
            budget_usage=BudgetUsage(**data["spent"]),
            ledger_location=_parse_ledger_location(data.get("effects")),
            completed_effects=tuple(data.get("known", ())),
            history=[dict(item) for item in data.get("history", ())],
            shared_history_keys=tuple(map(str, data.get("chain", ()))),
            root_response_id=None if data.get("root") is None else str(data["root"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"not valid edits of a conversation ({type(error).__name__})", field="session"
        ) from None


def _parse_ledger_location(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    run, branch = value
    return str(run), str(branch)
