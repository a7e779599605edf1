"""The runs that one worker guards, for those who want to see them: what was found, what was done.

Nothing here holds what was said: `agentguard.store` has that, if capture is on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

from agentguard.detect.base import Finding
from agentguard.recover.strategy import Recovery
from agentguard.runtime.session import Session


class Sessions:
    """Guarded runs of all tenants, the longest unused forgotten first; thread-safe.

    Args:
        most: how many are kept.
        most_bytes: what their last requests may have in all.
    """

    def __init__(self, most: int, *, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._bytes: dict[tuple[str, str], int] = {}
        self._at: dict[tuple[str, str], float] = {}
        self._total = 0
        self._held: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Runs that are kept."""
        return len(self._held)

    def add(self, tenant: str, session: Session) -> None:
        """A run has begun."""
        with self._lock:
            self._held[tenant, session.id] = session
            self._at[tenant, session.id] = time.time()
            self._trim()

    def used(self, tenant: str, session: Session, size: int) -> None:
        """A run was gone on with, by a request of so many bytes."""
        key = (tenant, session.id)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                self._at[key] = time.time()
                self._total += size - self._bytes.get(key, 0)
                self._bytes[key] = size
                self._trim()

    def _trim(self) -> None:
        while len(self._held) > self._most or (self._total > self._most_bytes and len(self._held) > 1):
            key, _ = self._held.popitem(last=False)
            self._total -= self._bytes.pop(key, 0)
            self._at.pop(key, None)

    def listed(self, tenant: str | None = None, *, most: int = 100) -> list[dict[str, Any]]:
        """Runs at a glance, the latest used first; of all tenants for None."""
        made: list[dict[str, Any]] = []
        for of, session in self._of(tenant):
            if len(made) == most:
                break
            made.append(self._glance(of, session))
        return made

    def told(self, *, each: int, most: int) -> list[dict[str, Any]]:
        """The latest runs at a glance, for other workers to list: so many of each tenant, and in all."""
        made: list[dict[str, Any]] = []
        count = Counter[str]()
        for of, session in self._of(None):
            count[of] += 1
            if count[of] <= each:
                made.append(self._glance(of, session))
                if len(made) == most:
                    break
        return made

    def one(self, id: str, tenant: str | None = None) -> dict[str, Any] | None:
        """A run with its steps, findings and recoveries; None if this worker guards no such run."""
        for of, session in self._of(tenant):
            if session.id == id:
                return {
                    **self._glance(of, session),
                    "steps": [
                        {
                            "index": step.index,
                            "source": step.source.value,
                            "agent": step.agent,
                            "tools": [call.name for call in step.tool_calls],
                        }
                        for step in session.run.steps
                    ],
                    "findings": [_finding(one) for one in session.findings],
                    "recoveries": [_recovery(one) for one in session.recoveries],
                }
        return None

    def _glance(self, tenant: str, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "tenant": tenant,
            "used_at": round(self._at.get((tenant, session.id), 0.0), 3),
            "length": len(session),
            "ended": session.has_ended,
            "stopped": session.stop_reason,
            "codes": codes_of(session.findings),
            "recovered": len(session.recoveries),
            "failures": len(session.failures),
            "guard_s": round(session.overhead_s, 6),
        }

    def _of(self, tenant: str | None) -> Iterator[tuple[str, Session]]:
        with self._lock:
            held = list(reversed(self._held.items()))
        for (of, _), session in held:
            if tenant is None or of == tenant:
                yield of, session


def codes_of(findings: list[Finding]) -> list[str]:
    """The first code of each finding, or its detector where it has none; each once, in order."""
    return list(dict.fromkeys(one.codes[0] if one.codes else one.detector for one in findings))


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "detector": finding.detector,
        "step": finding.step,
        "codes": list(finding.codes),
        "probability": finding.probability,
    }


def _recovery(recovery: Recovery) -> dict[str, Any]:
    return {
        "id": recovery.id,
        "strategy": recovery.plan.strategy,
        "tier": recovery.plan.tier.name.lower(),
        "trigger": recovery.trigger,
        "step": recovery.plan.step,
        "at_step": recovery.at_step,
        "outcome": recovery.outcome.value,
    }
