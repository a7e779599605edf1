from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agentguard_server.proxy.admin.status import ProxyStatus
from agentguard_server.proxy.capture.protocol import CapturedExchange, CollectorStatus
from agentguard_server.proxy.capture.recorder import CaptureRecorder
from agentguard_server.proxy.guard.inline_guard import InlineGuard
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions
from agentguard_server.proxy.process.services import _iter_capture_metrics

from agentguard.backends.pool import Pool
from tests.unit.server.proxy.harness import gateway


def test_dropped_or_pending_captures_are_not_counted_as_accepted(tmp_path: Path) -> None:
    async def play() -> None:
        options = CaptureOptions(max_queue_bytes=65_536)
        capture = CaptureRecorder(
            options, GuardOptions(), worker=1, socket_path_override=str(tmp_path / "nobody")
        )
        for _ in range(100):
            capture.client.enqueue(CapturedExchange("", "", "chat", False, b"x" * 1000, b"", 0.0, 0.0), 1000)
        told = {name: value for name, _, value in _iter_capture_metrics(capture)}
        assert 0 < told["capture_dropped"] < 100
        assert told["capture_accepted"] == 0
        capture.client.close()
        assert {name: value for name, _, value in _iter_capture_metrics(capture)} == {
            "capture_dropped": 100,
            "capture_accepted": 0,
        }

    asyncio.run(play())


@pytest.mark.parametrize(("worker", "expected"), [(0, 7), (1, 0)])
def test_lost_rows_are_counted_once_for_all_workers(worker: int, expected: int, tmp_path: Path) -> None:
    capture = CaptureRecorder(
        CaptureOptions(), GuardOptions(), worker=worker, socket_path_override=str(tmp_path / "nobody")
    )
    capture.client.collector_status = CollectorStatus(lost=7)
    assert {name: value for name, _, value in _iter_capture_metrics(capture)}["capture_dropped"] == expected


def test_guard_counters_are_reported_as_metrics_and_status() -> None:
    inline = InlineGuard(GuardOptions())
    inline.counts.too_long, inline.counts.unjoined, inline.counts.unsupported = 2, 3, 4
    app_state = gateway(guarding=inline)
    status = ProxyStatus(app_state, Pool(app_state.settings.backends))
    samples = {(name, labels): value for name, labels, value in status.collect_metrics()}
    assert samples["guard_skipped", ("body_too_large",)] == 2
    assert samples["guard_skipped", ("not_supported",)] == 4
    assert samples["guard_active_sessions", ()] == 0
    assert status.local()["guard"] == {
        "runs": 0, "guarded": 0, "too_long": 2, "refused": 0, "unjoined": 3, "unsupported": 4
    }  # fmt: skip
