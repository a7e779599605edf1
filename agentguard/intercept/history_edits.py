"""What a guard has done to a conversation's line, so that another process can go on showing it so.

The client resends its history wherever its next request goes; what another process does not know is which
turns of it were taken back, what was said between them, and which tools were withheld. These edits are plain
data, and name turns by what they are known again by. A conversation in which nothing was done has none.
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
from agentguard.recover.effect_ledger import Effect

MAX_SHARED_REQUESTS = 1000
"""Requests of a conversation whose history is kept for others; a longer one stays where it is."""


@dataclass(slots=True, kw_only=True)
class HistoryEdits:
    """What was done to a line.

    Attributes:
        left: turns that were taken back.
        notes: what was said right before a turn.
        told: what is to be said next.
        withheld: tools that were taken away.
        spent: what recoveries have cost.
        where: the run and the line under which the store has the effects of the run; None if it has none.
        known: those of them that are done.
        history: all that was said before, where the client names a response instead of telling it.
        chain: keys under which others find that history.
        root: response that a history which nobody knows ended with.
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
    """What a turn is known again by, without its results."""
    begin = extend_key(
        b"turn", [item for item in items if not adapter.is_result(item)], adapter.build_item_key
    )
    return begin.hex()


def build_shared_state(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item], body: Mapping[str, Any]
) -> dict[str, Any] | None:
    """What another process needs to go on with a conversation, as plain data; None if its history will do.

    Beside its edits that is where its effects are kept, and, where a client goes on by naming the response,
    what was said since the last time: ``items``, to be kept under the last key of ``chain``.
    """
    data, added = (
        serialize_edits(conversation, adapter, history),
        _select_new_items(conversation, adapter, history, body),
    )
    where = (
        None if conversation.is_finished else conversation.session.ledger.location
    )  # what comes next is another run
    if data is None and added is None and where is None and not conversation.version:
        return None
    data = data or {"left": [], "notes": [], "told": [], "withheld": [], "spent": asdict(BudgetUsage())}
    if where is not None:
        data["effects"] = list(where)
    if added is not None:
        data |= {
            "chain": list(conversation.shared_history_keys or ()),
            "root": conversation.root_response_id,
            "items": added,
        }
    return data


def _select_new_items(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item], body: Mapping[str, Any]
) -> list[Item] | None:
    """What was said since the last time; None where the client tells its history, or may not name answers."""
    if not adapter.stores_history or conversation.shared_history_keys is None or body.get("store") is False:
        return None
    told = body.get("previous_response_id") is None
    if (told and (conversation.shared_history_keys or any(map(adapter.is_result, history)))) or len(
        conversation.shared_history_keys
    ) >= MAX_SHARED_REQUESTS:
        conversation.shared_history_keys = None
        return None
    whole = [*history, *conversation.answer]
    added, conversation.shared_item_count = whole[conversation.shared_item_count :], len(whole)
    conversation.shared_history_keys = (*conversation.shared_history_keys, secrets.token_hex(16))
    return added


def serialize_edits(
    conversation: Conversation, adapter: ApiAdapter, history: Sequence[Item]
) -> dict[str, Any] | None:
    """The edits of a conversation as plain data; None if there are none."""
    noted = [held for held in conversation.branch.steps if held.guard_items]
    if not (
        conversation.abandoned_turns
        or noted
        or conversation.branch.pending_guard_items
        or conversation.disabled_tools
    ):
        return None
    notes = [
        [build_turn_key(adapter, resolve_items(held.items, history)), held.guard_items] for held in noted
    ]
    return {
        "left": sorted(conversation.abandoned_turns),
        "notes": notes,
        "told": conversation.branch.pending_guard_items,
        "withheld": sorted(conversation.disabled_tools),
        "spent": asdict(conversation.session.account.usage),
    }


def parse_edits(data: Mapping[str, Any]) -> HistoryEdits:
    """The edits that were data. Raises FormatError if they are none."""
    try:
        return HistoryEdits(
            abandoned_turns=frozenset(map(str, data["left"])),
            guard_items_by_turn={str(name): [dict(item) for item in told] for name, told in data["notes"]},
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
        raise FormatError(f"no edits of a conversation ({type(error).__name__})", field="session") from None


def _parse_ledger_location(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    run, line = value
    return str(run), str(line)
