"""``agentguard view`` as users and programs start it: a real process, a real port, a real signal."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.store import Store
from agentguard.trajectory.model import Trajectory
from tests.viewer_server import SAMPLES

SAMPLE = SAMPLES / "01-banana-and-pepper.json"


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(build_app(), ["view", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.output


@contextmanager
def viewing(folder, *arguments: object):
    """Run the command in ``folder``; yield the process and the printed address."""
    command = [sys.executable, "-c", "from agentguard.cli import main; main()", "view", "--json"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "AGENTGUARD_STORE": ""},
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stdout.close()
        process.stderr.close()


def get(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(url: str, text: str, within_s: float = 60.0, **headers: str) -> str:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        _, page = get(url, **headers)
        if text in page:
            return page
        time.sleep(0.2)
    raise AssertionError(f"{text!r} never came: {page}")


def test_invalid_arguments_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGUARD_STORE", raising=False)
    assert "nothing.json is not a file, a folder or a store" in refused("nothing.json")
    assert "there is no store" in refused()
    assert "name files to show" in refused("--store", tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    for name in ("a.db", "b.db"):
        Store.open(tmp_path / name).close()
    assert "name one store" in refused(tmp_path / "a.db", tmp_path / "b.db")
    assert "name it with --store" in refused(tmp_path / "a.db", SAMPLE)
    assert "is not an address of this machine" in refused(
        SAMPLE, "--host", "203.0.113.9", "--token", "x" * 20
    )


def test_used_port_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        output = refused(SAMPLE, "--port", port)
    assert f"port {port} is in use" in output
    assert "--port 0" in output


def test_missing_extra_is_named(monkeypatch):
    from importlib import util

    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *a: None if name == "jinja2" else found(name, *a))
    assert "pip install 'agentguard[view]'" in refused(SAMPLE)


@pytest.mark.slow
def test_files_are_shown_and_removed_at_interrupt(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    with viewing(tmp_path, SAMPLE, tmp_path / "bad.json", "--port", 0) as (process, told):
        page = until(f"{told['url']}/", "Read 1 run from 2 files")
        assert "1 record could not be read" in page
        assert "bad.json" in page
        stream = http.client.HTTPConnection(told["url"].removeprefix("http://"), timeout=20)
        stream.request("GET", "/events")
        answer = stream.getresponse()
        assert answer.getheader("content-type").startswith("text/event-stream")
        assert answer.readline() == b"retry: 3000\n"
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        assert process.wait(20) == 0
        assert time.monotonic() - asked < 15  # an open live-update connection does not delay the end
        stream.close()
        assert b"not read: " in process.stderr.read()
    assert [one.name for one in tmp_path.iterdir()] == ["bad.json"]


@pytest.mark.slow
def test_files_are_kept_on_request_and_sigterm_ends_viewer(tmp_path):
    keep = tmp_path / "kept.db"
    usage = {"prompt_tokens": 500_000, "completion_tokens": 0}
    with (tmp_path / "run.json").open("w") as file:
        step = {"step_id": 1, "source": "agent", "message": "done", "model_name": "m-1", "metrics": usage}
        agent = {"name": "a", "version": "1"}
        json.dump({"schema_version": "ATIF-v1.4", "session_id": "s", "agent": agent, "steps": [step]}, file)
    (tmp_path / "policy.yaml").write_text('prices: {"m*": {input: 3, output: 0}}')
    options = ("--store", keep, "--no-diagnose", "--policy", tmp_path / "policy.yaml", "--port", 0)
    with viewing(tmp_path, tmp_path / "run.json", *options) as (process, told):
        until(f"{told['url']}/", "Read 1 run from 1 file")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with Store.open(keep) as store:
        (row,) = store.list_run_summaries().rows
        assert (row.verdict, row.cost_usd) == ("", 1.5)


@pytest.mark.slow
def test_public_address_generates_token(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.write_run(Trajectory(id="r", format="f", task="secret task", steps=())).wait(10)
    with viewing(tmp_path, tmp_path / "s.db", "--host", "0.0.0.0", "--port", 0) as (process, told):
        assert len(told["token"]) >= 24
        here = re.sub(r"//[^:]+:", "//127.0.0.1:", told["url"])
        status, page = get(f"{here}/")
        assert status == 401
        assert "secret task" not in page
        assert "secret task" in get(f"{here}/", authorization=f"Bearer {told['token']}")[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
