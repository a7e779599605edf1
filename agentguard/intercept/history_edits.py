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
from agentguard.intercept.conversation import Conversation, Item, extended, view
from agentguard.recover.budget import BudgetUsage
from agentguard.recover.effect_ledger import Effect

MOST_LINKS = 1000
"""Requests of a conversation whose history is kept for others; a longer one stays where it is."""


@dataclass(slots=True, kw_only=True)
class Edits:
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

    left: frozenset[str] = frozenset()
    notes: dict[str, list[Item]] = field(default_factory=dict)
    told: list[Item] = field(default_factory=list)
    withheld: frozenset[str] = frozenset()
    spent: BudgetUsage = field(default_factory=BudgetUsage)
    where: tuple[str, str] | None = None
    known: tuple[Effect, ...] = ()
    history: list[Item] = field(default_factory=list)
    chain: tuple[str, ...] = ()
    root: str | None = None


def turn_name(dialect: ApiAdapter, items: Sequence[Item]) -> str:
    """What a turn is known again by, without its results."""
    begin = extended(b"turn", [item for item in items if not dialect.result(item)], dialect.key)
    return begin.hex()


def told_to_others(
    of: Conversation, dialect: ApiAdapter, history: Sequence[Item], body: Mapping[str, Any]
) -> dict[str, Any] | None:
    """What another process needs to go on with a conversation, as plain data; None if its history will do.

    Beside its edits that is where its effects are kept, and, where a client goes on by naming the response,
    what was said since the last time: ``items``, to be kept under the last key of ``chain``.
    """
    data, added = edits_as_data(of, dialect, history), _added(of, dialect, history, body)
    where = None if of.over else of.session.ledger.location  # what comes next is another run
    if data is None and added is None and where is None and not of.version:
        return None
    data = data or {"left": [], "notes": [], "told": [], "withheld": [], "spent": asdict(BudgetUsage())}
    if where is not None:
        data["effects"] = list(where)
    if added is not None:
        data |= {"chain": list(of.chain or ()), "root": of.root, "items": added}
    return data


def _added(
    of: Conversation, dialect: ApiAdapter, history: Sequence[Item], body: Mapping[str, Any]
) -> list[Item] | None:
    """What was said since the last time; None where the client tells its history, or may not name answers."""
    if not dialect.keeps or of.chain is None or body.get("store") is False:
        return None
    told = body.get("previous_response_id") is None
    if (told and (of.chain or any(map(dialect.result, history)))) or len(of.chain) >= MOST_LINKS:
        of.chain = None
        return None
    whole = [*history, *of.answer]
    added, of.chained = whole[of.chained :], len(whole)
    of.chain = (*of.chain, secrets.token_hex(16))
    return added


def edits_as_data(of: Conversation, dialect: ApiAdapter, history: Sequence[Item]) -> dict[str, Any] | None:
    """The edits of a conversation as plain data; None if there are none."""
    noted = [held for held in of.line.steps if held.told]
    if not (of.left or noted or of.line.told or of.withheld):
        return None
    notes = [[turn_name(dialect, view(held.items, history)), held.told] for held in noted]
    return {
        "left": sorted(of.left),
        "notes": notes,
        "told": of.line.told,
        "withheld": sorted(of.withheld),
        "spent": asdict(of.session.account.usage),
    }


def edits_of(data: Mapping[str, Any]) -> Edits:
    """The edits that were data. Raises FormatError if they are none."""
    try:
        return Edits(
            left=frozenset(map(str, data["left"])),
            notes={str(name): [dict(item) for item in told] for name, told in data["notes"]},
            told=[dict(item) for item in data["told"]],
            withheld=frozenset(map(str, data["withheld"])),
            spent=BudgetUsage(**data["spent"]),
            where=_where(data.get("effects")),
            known=tuple(data.get("known", ())),
            history=[dict(item) for item in data.get("history", ())],
            chain=tuple(map(str, data.get("chain", ()))),
            root=None if data.get("root") is None else str(data["root"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"no edits of a conversation ({type(error).__name__})", field="session") from None


def _where(given: Any) -> tuple[str, str] | None:
    if given is None:
        return None
    run, line = given
    return str(run), str(line)
