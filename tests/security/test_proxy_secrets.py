"""Canary keys through every fault at the level DEBUG: no output of the proxy contains them.

Known cases: keys in logs, errors and exception chains (LiteLLM #39964, #31342). The test checks the outputs,
the status, the metrics and the sessions, every answer, every file of the store, and its export.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.auth.authorization import generate_key

from agentguard.testing.fake_backend import FakeBackend, Ok
from tests.faults.proxy_cases import STREAMED, WHOLE, Across
from tests.faults.proxy_client import PATHS, Got, ask, body_for
from tests.faults.proxy_process import ROOT, Proxy, replicas, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

UPSTREAM = "sk-canary-upstream-3d9fQ2vX7bLr0TzKpW8m"
OWN = "sk-canary-clients-own-Zk4TqPw91mVb6NxJcR5y"
PROMPT = "sk-proj-canaryInThePrompt0123456789abcdefABCDEF"
FAST = {
    "timeout": {"total_s": 4.0},
    "attempt_timeout": {"seconds": 1.0},
    "stream_timeout": {"first_chunk_timeout_s": 1.0, "idle_timeout_s": 1.0},
}


@pytest.mark.parametrize("keys", [True, False], ids=["keys of ours", "the client's own key"])
def test_no_output_contains_a_key(tmp_path: Path, keys: bool) -> None:
    key, hashed = generate_key()
    table = {f"w-{n}": (fault, Ok()) for n, (fault, _) in WHOLE.items()}
    table |= {f"s-{n}": (fault, Ok()) for n, (fault, _) in STREAMED.items()}
    store = tmp_path / "store" / "runs.db"
    store.parent.mkdir()
    shown = key if keys else OWN
    with FakeBackend(Across(table), name="a") as a, FakeBackend(name="here") as here:
        more = {"api_key_env": "CANARY_KEY"} if keys else {}
        settings: dict[str, Any] = {
            "backends": {"replicas": replicas(a, **more), "health": {"interval_s": 0.5}, "pipeline": FAST},
            "logs": {"level": "debug"},
            "capture": {"store": str(store)},
            "guard": {},
        }
        if keys:
            settings["keys"] = [{"name": "ci", "hash": hashed, "scopes": ["call", "read"]}]
        with serving(tmp_path, settings, environment={"CANARY_KEY": UPSTREAM}) as proxy:
            answers = asyncio.run(_everything(proxy, list(table), shown))
            until(lambda: store.exists() and store.stat().st_size > 0, 60.0)
            time.sleep(1.0)
        assert here.requests == []
        sent = [one.get_header("authorization") for one in a.requests if one.method == "POST"]
    assert set(sent) == {f"Bearer {UPSTREAM if keys else OWN}"}
    canaries = [UPSTREAM, OWN, key, PROMPT] if keys else [UPSTREAM, OWN, PROMPT]
    said = {f"answer {n}": repr((got.headers, got.body)) for n, got in enumerate(answers)}
    said["output"] = proxy.printed()
    said |= {file.name: file.read_bytes().decode("latin-1") for file in store.parent.iterdir()}
    said["export"] = _exported(store)
    for where, text in said.items():
        for canary in canaries:
            assert canary not in text, f"{canary} stands in {where}"
        assert hashed not in text, f"a key's hash stands in {where}"
    assert '"event":"request"' in proxy.printed()  # the check is not empty
    assert len(said["export"]) > 1000


async def _everything(proxy: Proxy, marks: list[str], key: str) -> list[Got]:
    async def one(mark: str, n: int) -> Got:
        headers = (("authorization", f"Bearer {key}"), ("cookie", f"key={key}"))
        text = f"[[{mark}]] my password is {PROMPT}"
        body = body_for("chat", stream=mark.startswith("s-"), text=text, tools=n % 2 == 0)
        return await ask(proxy.port, PATHS["chat"], body, headers=headers, seconds=20)

    answers = list(await asyncio.gather(*(one(mark, n) for n, mark in enumerate(marks))))
    head = (("authorization", f"Bearer {key}"),)
    paths = ("/status", "/metrics", "/agentguard/v1/sessions", "/agentguard/v1/replicas", "/v1/models")
    answers += [await proxy.get(path, headers=head) for path in paths]
    wrong = [("authorization", f"Bearer {key}x"), ("x-api-key", key + "y"), ("authorization", f"Basic {key}")]
    for name, value in wrong:
        answers.append(await ask(proxy.port, PATHS["chat"], b"{", headers=((name, value),)))
    answers.append(await ask(proxy.port, f"/v1/{key}?api_key={key}", method="GET", headers=head))
    # The upstream's answer repeats the client's own request, which may contain the key.
    answers[-1].body = b""
    return answers


def _exported(store: Path) -> str:
    """Return all runs of the store in the command's export format."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        ids = [one[0] for one in connection.execute("SELECT id FROM agentguard_runs")]
    assert ids
    command = [sys.executable, "-c", "from agentguard.cli import main; main()", "convert", *ids]
    done = subprocess.run(
        [*command, "--store", f"sqlite:///{store}", "--to", "event_log"],
        capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
