from __future__ import annotations

import asyncio
from pathlib import Path

from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.capture.recorder import Capture
from agentguard_server.proxy.guard.options import CaptureOptions
from agentguard_server.proxy.process.services import _captured

from agentguard.config.policy import Policy


def test_what_capture_lost_or_still_holds_is_not_told_as_kept(tmp_path: Path) -> None:
    async def play() -> None:
        options = CaptureOptions(queue_bytes=65_536)
        capture = Capture(options, Policy(), worker=1, path=str(tmp_path / "nobody"))
        for _ in range(100):
            capture.link.put(CapturedExchange("", "", "chat", False, b"x" * 1000, b""), 1000)
        told = {name: value for name, _, value in _captured(capture)}
        assert 0 < told["capture_lost"] < 100
        assert told["capture_kept"] == 0
        capture.link.close()
        assert {name: value for name, _, value in _captured(capture)} == {
            "capture_lost": 100,
            "capture_kept": 0,
        }

    asyncio.run(play())
