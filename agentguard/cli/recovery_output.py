"""Output of the guard's recoveries in a run on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentguard.cli.terminal_text import to_one_line

if TYPE_CHECKING:
    from agentguard.store.db.rows import RecoveryRow

_OUTCOMES: Final = {
    "recovered": "confirmed",
    "failed": "refuted",
    "unknown": "outcome unknown",
    "planned": "not verified yet",
}
_MAX_REASON_CHARS: Final = 200


def render_recoveries(console: Console, recoveries: Sequence[RecoveryRow]) -> None:
    """Print one line for each recovery, in order of time: strategy, step, trigger, outcome and reason."""
    if not recoveries:
        return
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(style="dim", min_width=13, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in sorted(recoveries, key=lambda one: one.created_at):
        plan = row.data.get("plan", {})
        step = "" if row.step is None else f"step {row.step} · "
        outcome = _OUTCOMES.get(row.outcome, row.outcome)
        reason = to_one_line(str(plan.get("reason", "")), _MAX_REASON_CHARS)
        line = f"{step}{row.strategy} · {row.data.get('trigger', '')} · {outcome}"
        grid.add_row("recovery", Text(f"{line} · {reason}" if reason else line))
    console.print(Padding(grid, (0, 0, 0, 2)))
