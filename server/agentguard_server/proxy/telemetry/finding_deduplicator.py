"""Filter for findings that an earlier request of the run has already reported."""

from __future__ import annotations

from collections import OrderedDict

from agentguard_server.proxy.hooks import GuardOutcome


class FindingDeduplicator:
    """Filter for new findings: each request of a run reports all findings of the run.

    Args:
        max_runs: maximum number of runs; the least recently used is forgotten first.
    """

    def __init__(self, max_runs: int = 4096) -> None:
        self._max_runs = max_runs
        self._seen_codes: OrderedDict[tuple[str, str], set[str]] = OrderedDict()

    def select_new(self, tenant: str, outcome: GuardOutcome) -> list[str]:
        """Return the codes that no earlier request of the run has reported."""
        if not outcome.findings:
            return []
        key = (tenant, outcome.run_id)
        seen = self._seen_codes.setdefault(key, set())
        self._seen_codes.move_to_end(key)
        while len(self._seen_codes) > self._max_runs:
            self._seen_codes.popitem(last=False)
        new = [code for code, _ in outcome.findings if code not in seen]
        seen.update(new)
        return new
