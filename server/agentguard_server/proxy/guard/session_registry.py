"""Registry of the guarded runs of one worker: findings and recoveries for the status pages.

It returns no message texts; `agentguard.store` has them if capture is configured.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from agentguard.detect.base import Finding
from agentguard.recover.plan import Recovery, RecoveryOutcome
from agentguard.runtime.session import Session


class SessionRegistry:
    """Guarded runs of all tenants, with eviction of the least recently used; thread-safe.

    Args:
        max_sessions: upper bound on the number of runs.
        max_bytes: upper bound on the total size of the runs' last requests.
    """

    def __init__(self, max_sessions: int, *, max_bytes: int) -> None:
        self._max_sessions, self._max_bytes = max_sessions, max_bytes
        self._session_bytes: dict[tuple[str, str], int] = {}
        self._used_at: dict[tuple[str, str], float] = {}
        self._total_bytes = 0
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._sessions)

    def add(self, tenant: str, session: Session) -> None:
        """Add a new run."""
        with self._lock:
            self._sessions[tenant, session.id] = session
            self._used_at[tenant, session.id] = time.time()
            self._evict()

    def touch(self, tenant: str, session: Session, size: int) -> None:
        """Mark a run as used by a request of ``size`` bytes."""
        key = (tenant, session.id)
        with self._lock:
            if key in self._sessions:
                self._sessions.move_to_end(key)
                self._used_at[key] = time.time()
                self._total_bytes += size - self._session_bytes.get(key, 0)
                self._session_bytes[key] = size
                self._evict()

    def _evict(self) -> None:
        while len(self._sessions) > self._max_sessions or (
            self._total_bytes > self._max_bytes and len(self._sessions) > 1
        ):
            key, _ = self._sessions.popitem(last=False)
            self._total_bytes -= self._session_bytes.pop(key, 0)
            self._used_at.pop(key, None)

    def list_summaries(self, tenant: str | None = None, *, limit: int = 100) -> list[dict[str, Any]]:
        """Return summaries of a tenant's runs, or of all runs for None; the most recently used first."""
        sessions = islice(self._iter_sessions(tenant), limit)
        return [self._summarize(owner, session) for owner, session in sessions]

    def list_recent(self, *, tenant_limit: int, limit: int) -> list[dict[str, Any]]:
        """Return the most recently used runs: at most ``tenant_limit`` per tenant, ``limit`` in total."""
        summaries: list[dict[str, Any]] = []
        counts = Counter[str]()
        for owner, session in self._iter_sessions(None):
            counts[owner] += 1
            if counts[owner] <= tenant_limit:
                summaries.append(self._summarize(owner, session))
                if len(summaries) == limit:
                    break
        return summaries

    def describe(self, id: str, tenant: str | None = None) -> dict[str, Any] | None:
        """Return a run with its steps, findings and recoveries; None if this worker does not have it."""
        for owner, session in self._iter_sessions(tenant):
            if session.id == id:
                return {
                    **self._summarize(owner, session),
                    "steps": [
                        {
                            "index": step.index,
                            "source": step.source.value,
                            "agent": step.agent,
                            "tools": [call.name for call in step.tool_calls],
                        }
                        for step in session.run.steps
                    ],
                    "findings": [_finding_to_dict(one) for one in session.findings],
                    "recoveries": [_recovery_to_dict(one) for one in session.recoveries],
                }
        return None

    def _summarize(self, tenant: str, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "tenant": tenant,
            "used_at": round(self._used_at.get((tenant, session.id), 0.0), 3),
            "length": len(session),
            "ended": session.has_ended,
            "stopped": session.stop_reason,
            "codes": _list_codes(session.findings),
            "recoveries": _count_outcomes(session.recoveries),
            "failures": len(session.failures),
            "guard_s": round(session.overhead_s, 6),
        }

    def _iter_sessions(self, tenant: str | None) -> Iterator[tuple[str, Session]]:
        with self._lock:
            sessions = list(reversed(self._sessions.items()))
        for (owner, _), session in sessions:
            if tenant is None or owner == tenant:
                yield owner, session


def _list_codes(findings: list[Finding]) -> list[str]:
    """Return the first code of each finding, or its detector without a code; each once, in order."""
    return list(dict.fromkeys(one.codes[0] if one.codes else one.detector for one in findings))


def _count_outcomes(recoveries: Iterable[Recovery]) -> dict[str, int]:
    """Return the number of recoveries by outcome; all outcomes are present."""
    counts = Counter(one.outcome for one in recoveries)
    return {outcome.value: counts[outcome] for outcome in RecoveryOutcome}


def _finding_to_dict(finding: Finding) -> dict[str, Any]:
    return {
        "detector": finding.detector,
        "step": finding.step,
        "codes": list(finding.codes),
        "probability": finding.probability,
    }


def _recovery_to_dict(recovery: Recovery) -> dict[str, Any]:
    return {
        "id": recovery.id,
        "strategy": recovery.plan.strategy,
        "tier": recovery.plan.tier.name.lower(),
        "trigger": recovery.trigger,
        "step": recovery.plan.step,
        "at_step": recovery.at_step,
        "outcome": recovery.outcome.value,
    }
