"""Spending of keys and tenants in a database that workers and machines share.

A thread adds the new amounts to the database and reads the totals, once a second. Requests use the last
totals and their own worker's new amounts, so no request waits for the database.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import AgentGuardError
from agentguard.store.db.database import Database
from agentguard.store.db.database_address import DatabaseAddress
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION, describe_error
from agentguard.store.db.tables import SPENDING
from agentguard_server.proxy.config.schema import BudgetPeriod

_LOG = logging.getLogger(__name__)
_SYNC_INTERVAL_S: Final = 1.0
_WARNING_INTERVAL_S: Final = 60.0
_CLOSE_TIMEOUT_S: Final = 5.0

_Account = tuple[str, str]


class SpendingLedger:
    """Spending by subject and period.

    Args:
        address: address of the database.
        wall_clock: seconds since the epoch.
        sync_interval_s: seconds between two exchanges with the database.

    Attributes:
        failed_syncs: number of exchanges that failed because the database was unavailable.
    """

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        wall_clock: Callable[[], float] = time.time,
        sync_interval_s: float = _SYNC_INTERVAL_S,
    ) -> None:
        self._database, self._address = Database(address), address
        self._wall_clock, self._sync_interval_s = wall_clock, sync_interval_s
        self._totals: dict[_Account, float] = {}
        self._new: dict[_Account, float] = {}
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned_at = float("-inf")
        self.failed_syncs = 0

    def add(self, subject: str, period: BudgetPeriod, usd: float) -> None:
        """Add an amount in US dollars. Never waits for the database."""
        account = subject, format_period(period, self._wall_clock())
        with self._lock:
            self._new[account] = self._new.get(account, 0.0) + usd

    def get_spent(self, subject: str, period: BudgetPeriod) -> float:
        """Return the spending of a subject in the current period, in US dollars."""
        account = subject, format_period(period, self._wall_clock())
        with self._lock:
            return self._totals.get(account, 0.0) + self._new.get(account, 0.0)

    def compute_reset_s(self, period: BudgetPeriod) -> float | None:
        """Return the seconds until the next period; None if the period does not end."""
        now = datetime.fromtimestamp(self._wall_clock(), UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if period == "total":
            return None
        if period == "day":
            return (midnight + timedelta(days=1) - now).total_seconds()
        next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        return (next_month - now).total_seconds()

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agentguard-spending", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread, and write the last amounts."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        else:
            self.synchronize()
        self._database.invalidate()

    def synchronize(self) -> bool:
        """Add the new amounts to the database and read the totals; return whether this succeeded."""
        with self._lock:
            written = {account: usd for account, usd in self._new.items() if usd}
        try:
            totals = self._exchange(written)
        except (SQLAlchemyError, OSError, AgentGuardError) as error:
            self.failed_syncs += 1
            self._database.invalidate()
            if time.monotonic() - self._warned_at > _WARNING_INTERVAL_S:
                self._warned_at = time.monotonic()
                _LOG.warning(
                    "the spending cannot be exchanged now; this worker counts alone: %s",
                    describe_error(error, self._address),
                )
            return False
        with self._lock:
            for account, usd in written.items():
                self._new[account] -= usd
                if not self._new[account]:
                    del self._new[account]
            self._totals = totals
        return True

    def _run(self) -> None:
        while True:
            is_last = self._stop_event.is_set()
            self.synchronize()
            if is_last:
                return
            self._stop_event.wait(self._sync_interval_s)

    def _exchange(self, amounts: dict[_Account, float]) -> dict[_Account, float]:
        engine = self._database.get_engine()
        options = IMMEDIATE_TRANSACTION if amounts else {}
        with engine.connect().execution_options(**options) as connection, connection.begin():
            for (subject, period), usd in sorted(amounts.items()):
                connection.execute(
                    _build_upsert(connection.dialect.name), {"subject": subject, "period": period, "usd": usd}
                )
            now = self._wall_clock()
            current = [format_period(period, now) for period in ("day", "month", "total")]
            rows = connection.execute(select(SPENDING).where(SPENDING.c.period.in_(current)))
            return {(row.subject, row.period): float(row.usd) for row in rows}


def format_period(period: BudgetPeriod, now: float) -> str:
    """Return the name of the period that contains a time, in UTC: ``2030-01-31``, ``2030-01``, ``total``."""
    if period == "total":
        return "total"
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d" if period == "day" else "%Y-%m")


def _build_upsert(dialect: str) -> Any:
    insert = (postgresql if dialect == "postgresql" else sqlite).insert(SPENDING)
    return insert.on_conflict_do_update(
        index_elements=["subject", "period"], set_={"usd": SPENDING.c.usd + insert.excluded.usd}
    )
