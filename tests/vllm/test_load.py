"""Many clients at a judge that `agentguard judge serve` supervises: no restart, and no request is lost.

`benchmarks/judge_load.py` is the same load for five minutes.
"""

from __future__ import annotations

import pytest

from tests.judge_load import run_load
from tests.judge_process import Serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

CLIENTS = 200
SECONDS = 60.0


def test_two_hundred_clients_at_a_queue_of_64_lose_no_request(served: Serving) -> None:
    served.until("ready")
    report = run_load(served, clients=CLIENTS, seconds=SECONDS)
    assert report.lost == {}
    assert report.restarts == 0
    assert report.answered > 0
    assert report.refused > 0, "the queue was full"
    assert not any(phase.startswith(("suspect", "waiting", "draining")) for phase in report.phases)
