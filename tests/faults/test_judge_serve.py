"""``agentguard judge serve`` around a real process: killed, stopped, dying at its start, drained."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.judge_serving import ROOT, Serving, get, gone
from tests.judge_serving import serving as serving_with

FAKE = ROOT / "tests" / "fake_vllm"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def serving(tmp_path: Path, *more: str, environment: dict[str, str] | None = None) -> Iterator[Serving]:
    """Serve with what stands for vLLM here."""
    flags = ("--heartbeat-s", "0.2", "--canary-s", "1", "--log", str(tmp_path / "server.log"), *more)
    told = {"PYTHONPATH": str(FAKE), **(environment or {})}
    with serving_with("a-model", sys.executable, *flags, environment=told) as served:
        yield served


def test_it_serves_tells_its_state_and_drains(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        ready = served.until("ready")
        assert ready["canary"]["asked"] == 3
        assert get(f"{ready['url']}/models")[1]["data"][0]["id"] == "judge"
        status, state = get(ready["state_url"])
        assert (status, state["phase"], state["pid"]) == (200, "ready", ready["pid"])
        served.process.send_signal(signal.SIGTERM)
        assert served.until("stopped")["pid"] is None
        assert served.process.wait(30) == 0
        assert gone(ready["pid"])
    assert [one["phase"] for one in served.seen[-2:]] == ["draining", "stopped"]


def test_a_killed_server_comes_back_at_the_same_address(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        first = served.until("ready")
        os.killpg(first["pid"], signal.SIGKILL)
        assert served.until("waiting")["reason"] == "the process ended"
        again = served.until("ready")
        assert again["url"] == first["url"]
        assert again["pid"] != first["pid"]
        assert again["restarts"] == 1


def test_a_stopped_server_is_ended_and_started_again(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        first = served.until("ready")
        os.kill(first["pid"], signal.SIGSTOP)
        served.until("suspect")
        again = served.until("ready")
        assert again["pid"] != first["pid"]
        assert gone(first["pid"])


def test_one_that_keeps_dying_is_given_up_and_says_why(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.write_text("die\n" * 9)
    with serving(tmp_path, "--restarts", "1", environment={"FAKE_VLLM_BREAKS": str(marks)}) as served:
        given_up = served.until("given_up")
        assert "CUDA out of memory" in given_up["reason"]
        assert served.process.wait(30) == 1
    assert len(marks.read_text().splitlines()) == 7


def test_one_that_dies_once_is_ready_in_the_end(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.write_text("die\n")
    with serving(tmp_path, environment={"FAKE_VLLM_BREAKS": str(marks)}) as served:
        assert served.until("ready")["restarts"] == 1


def test_nothing_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        ready = served.until("ready")
        served.process.kill()
        served.process.wait(30)
        assert gone(ready["pid"])


def test_a_port_in_use_is_given_up_with_the_log(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        port = first.until("ready")["url"].rsplit(":", 1)[1].removesuffix("/v1")
        with serving(tmp_path / "second", "--port", port, "--restarts", "0") as second:
            assert "Address already in use" in second.until("given_up")["reason"]
