"""The block of the page on agent, judge and viewer runs unchanged against a real vLLM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from agentguard.store import Store
from tests.vllm_server import VllmServer

pytest.importorskip("langchain_openai", reason="needs langchain-openai, which the dev extra installs")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "langchain-judge-viewer.md"
URL = "http://127.0.0.1:8000/v1"
BLOCK = re.compile(r"<!-- block -->\n(.*?)<!-- end of block -->", re.DOTALL)


def read_block() -> str:
    found = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, f"{PAGE.name} has no block"
    return found.group(1)


def test_quickstart_block_is_short() -> None:
    lines = [line for line in read_block().splitlines() if not line.startswith("```")]
    assert len(lines) <= 25


def test_quickstart_runs_a_guarded_agent_with_a_diagnosis(vllm: VllmServer, tmp_path: Path) -> None:
    block = read_block().replace(URL, vllm.url)
    (policy_line,) = (line for line in block.splitlines() if line.startswith("$ echo"))
    subprocess.run(["sh", "-c", policy_line.removeprefix("$ ")], cwd=tmp_path, check=True)
    code = block.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    before = vllm.metrics()
    ended = subprocess.run(
        [sys.executable, "agent.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    after = vllm.metrics()
    counter = next(name for name in after if name.startswith("vllm:request_success_total"))
    assert after[counter] > before.get(counter, 0.0)
    with Store.open(tmp_path / "runs.db") as store:
        (run,) = store.list_runs().rows
        (diagnosis,) = store.list_diagnoses(run.id)
        assert diagnosis.method == "fused"
        assert diagnosis.data["usage"]["calls"] > 0
        show_run(store, run.id)


def show_run(store: Store, run_id: str) -> None:
    from agentguard_server.viewer.app import build_app
    from agentguard_server.viewer.settings import ViewerSettings

    with TestClient(build_app(store, ViewerSettings()), base_url="http://127.0.0.1") as client:
        assert client.get(f"/runs/{run_id}").status_code == 200
