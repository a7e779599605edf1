"""What a guard has done to a conversation's line, so that another process can go on showing it so.

The client resends its history wherever its next request goes; what another process does not know is which
turns of it were taken back, what was said between them, and which tools were withheld. These edits are plain
data, and name turns by what they are known again by. A conversation in which nothing was done has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentguard.errors import FormatError
from agentguard.integrations.exchange.conversation import Conversation, Item, extended, view
from agentguard.integrations.exchange.dialect import Dialect
from agentguard.recover.budget import Spent


@dataclass(slots=True, kw_only=True)
class Edits:
    """What was done to a line.

    Attributes:
        left: turns that were taken back.
        notes: what was said right before a turn.
        told: what is to be said next.
        withheld: tools that were taken away.
        spent: what recoveries have cost.
    """

    left: frozenset[str] = frozenset()
    notes: dict[str, list[Item]] = field(default_factory=dict)
    told: list[Item] = field(default_factory=list)
    withheld: frozenset[str] = frozenset()
    spent: Spent = field(default_factory=Spent)


def turn_name(dialect: Dialect, items: Sequence[Item]) -> str:
    """What a turn is known again by, without its results."""
    begin = extended(b"turn", [item for item in items if not dialect.result(item)], dialect.key)
    return begin.hex()


def edits_as_data(of: Conversation, dialect: Dialect, history: Sequence[Item]) -> dict[str, Any] | None:
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
        "spent": asdict(of.session.account.spent),
    }


def edits_of(data: Mapping[str, Any]) -> Edits:
    """The edits that were data. Raises FormatError if they are none."""
    try:
        return Edits(
            left=frozenset(map(str, data["left"])),
            notes={str(name): [dict(item) for item in told] for name, told in data["notes"]},
            told=[dict(item) for item in data["told"]],
            withheld=frozenset(map(str, data["withheld"])),
            spent=Spent(**data["spent"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"no edits of a conversation ({type(error).__name__})", field="session") from None
