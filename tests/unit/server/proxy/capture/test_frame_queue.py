"""Queue of received frames."""

from __future__ import annotations

import random

import pytest
from agentguard_server.proxy.capture import frame_queue
from agentguard_server.proxy.capture.frame_queue import FrameQueue


def test_frames_leave_in_order_with_their_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_queue, "_MAX_PLAIN_BYTES", 1000)
    queue: FrameQueue[str] = FrameQueue(1 << 20)
    frames = [bytes([n % 256]) * (300 + n) for n in range(40)]
    for n, frame in enumerate(frames):
        queue.put(f"worker {n % 3}", frame)
    assert len(queue) == 40
    assert [queue.pop() for _ in frames] == [(f"worker {n % 3}", frame) for n, frame in enumerate(frames)]
    with pytest.raises(IndexError):
        queue.pop()


def test_waiting_text_is_compressed_and_counts_with_its_compressed_size() -> None:
    queue: FrameQueue[None] = FrameQueue(4 << 20)
    frame = b'{"role": "user", "content": "the next train"}' * 6000
    for _ in range(100):  # 27 MB
        queue.put(None, frame)
    assert not queue.is_full
    assert {queue.pop()[1] for _ in range(100)} == {frame}


def test_queue_is_full_at_its_size_and_has_room_again() -> None:
    queue: FrameQueue[None] = FrameQueue(3 << 20)
    frame = random.Random(1).randbytes(1 << 20)
    for _ in range(3):
        assert not queue.is_full
        queue.put(None, frame)
    assert queue.is_full
    queue.pop()
    assert not queue.is_full
