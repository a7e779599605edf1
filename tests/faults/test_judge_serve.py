"""``agentguard judge serve`` around a real process: killed, stopped, failed at its start, drained."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.judge_process import ROOT, Serving, get, gone, serving as serving_with
from tests.unit.judge.chat_server import closed_port

FAKE = ROOT / "tests" / "fake_vllm"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def serving(tmp_path: Path, *more: str, environment: dict[str, str] | None = None) -> Iterator[Serving]:
    """Run the command with the fake vLLM."""
    flags = (
        "--health-interval",
        "0.2",
        "--probe-interval",
        "1",
        "--log",
        str(tmp_path / "server.log"),
        *more,
    )
    told = {"PYTHONPATH": str(FAKE), **(environment or {})}
    with serving_with("a-model", sys.executable, *flags, environment=told) as served:
        yield served


def test_judge_serves_reports_state_and_drains(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        ready = served.until("ready")
        assert ready["probe"]["asked"] == 3
        assert get(f"{ready['url']}/models")[1]["data"][0]["id"] == "judge"
        status, state = get(ready["state_url"])
        assert (status, state["phase"], state["pid"]) == (200, "ready", ready["pid"])
        served.process.send_signal(signal.SIGTERM)
        assert served.until("stopped")["pid"] is None
        assert served.process.wait(30) == 0
        assert gone(ready["pid"])
    assert [one["phase"] for one in served.seen[-2:]] == ["draining", "stopped"]


def test_killed_server_restarts_at_same_address(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        first = served.until("ready")
        os.killpg(first["pid"], signal.SIGKILL)
        assert served.until("waiting")["reason"] == "the process ended"
        again = served.until("ready")
        assert again["url"] == first["url"]
        assert again["pid"] != first["pid"]
        assert again["restarts"] == 1


def test_stopped_server_is_killed_and_restarted(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        first = served.until("ready")
        os.kill(first["pid"], signal.SIGSTOP)
        served.until("suspect")
        again = served.until("ready")
        assert again["pid"] != first["pid"]
        assert gone(first["pid"])


def test_repeatedly_dying_server_fails_with_reason(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.write_text("die\n" * 9)
    with serving(tmp_path, "--max-restarts", "1", environment={"FAKE_VLLM_BREAKS": str(marks)}) as served:
        given_up = served.until("given_up")
        assert "CUDA out of memory" in given_up["reason"]
        assert served.process.wait(30) == 1
    assert len(marks.read_text().splitlines()) == 7


def test_unknown_flag_fails_at_once_with_the_message_of_vllm(tmp_path: Path) -> None:
    with serving(tmp_path, "--", "--no-such-flag") as served:
        reason = served.until("given_up")["reason"]
        assert "unrecognized arguments: --no-such-flag" in reason
        assert [one["restarts"] for one in served.seen] == [0] * len(served.seen)
        assert served.process.wait(30) == 1


def test_environment_proxy_is_not_used_for_loopback(tmp_path: Path) -> None:
    proxy = f"http://127.0.0.1:{closed_port()}"
    with serving(tmp_path, environment={"http_proxy": proxy, "HTTP_PROXY": proxy, "no_proxy": ""}) as served:
        assert served.until("ready")["probe"]["asked"] == 3


def test_server_that_dies_once_becomes_ready(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.write_text("die\n")
    with serving(tmp_path, environment={"FAKE_VLLM_BREAKS": str(marks)}) as served:
        assert served.until("ready")["restarts"] == 1


def test_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        ready = served.until("ready")
        served.process.kill()
        served.process.wait(30)
        assert gone(ready["pid"])


def test_used_port_fails_with_server_log(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        port = first.until("ready")["url"].rsplit(":", 1)[1].removesuffix("/v1")
        with serving(tmp_path / "second", "--port", port, "--max-restarts", "0") as second:
            assert "Address already in use" in second.until("given_up")["reason"]
