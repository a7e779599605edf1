"""The block of the README and of its page runs unchanged against a real vLLM."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from agentguard.cli.judge_serve import DEFAULT_PORT
from agentguard.store import Store
from agentguard.supervision.process import find_free_port
from tests.vllm_server import CPU_ENVIRONMENT, CPU_FLAGS
from tests.vllm_setup import PYTHON, WEIGHTS, missing

pytest.importorskip("langchain_openai", reason="needs langchain-openai, which the dev extra installs")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"<!-- block -->\n(.*?)<!-- end of block -->", re.DOTALL)


def read_block(page: str) -> str:
    found = BLOCK.search((ROOT / page).read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no block"
    return found.group(1)


def test_quickstart_blocks_are_equal_and_short() -> None:
    block = read_block("README.md")
    assert block == read_block("docs/langchain-judge-viewer.md")
    lines = [line for line in block.splitlines() if not line.startswith("```")]
    assert len(lines) <= 25
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", block)) == {str(DEFAULT_PORT)}


def test_quickstart_runs_a_guarded_agent_with_a_diagnosis(tmp_path: Path) -> None:
    """All lines of the block run as they are, with the tiny model and a free port, up to the viewer."""
    if lacking := missing():
        pytest.skip(lacking)
    port = find_free_port("127.0.0.1")
    block = read_block("README.md").replace("http://127.0.0.1:8000", f"http://127.0.0.1:{port}")
    code = block.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    install, serve, wait, policy, run = (
        line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")
    )
    assert install.startswith("pip install ")
    local = f"{WEIGHTS} --python {PYTHON} --port {port} --max-model-len 4096 --offline --log server.log"
    serve = serve.replace(" 48gb -- ", f" {local} -- {' '.join(CPU_FLAGS)} ").partition("#")[0]
    assert serve.rstrip().endswith("&")
    agent, _, view = run.partition(" && ")
    assert view == "agentguard view runs.db"
    script = "\n".join(
        ["set -e", serve, "server=$!", "trap 'kill $server; wait $server || true' EXIT", wait, policy, agent]
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, **CPU_ENVIRONMENT, "PATH": path},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    with Store.open(tmp_path / "runs.db") as store:
        (row,) = store.list_runs().rows
        (diagnosis,) = store.list_diagnoses(row.id)
        assert diagnosis.method == "fused"
        assert diagnosis.data["usage"]["calls"] > 0
        text = read_page(store, row.id)
    assert "Find a free seat in row 7." in text
    # The tiny model's answers may have too little label mass: the page then has the error, not the version.
    assert (diagnosis.data["judge"] or "label_mass: the options have ") in text
    assert "Judge: calls" in text
    assert "Judge: prompt tokens" in text


def read_page(store: Store, run_id: str) -> str:
    """Return the texts of the run's page in the viewer: conversation, findings and facts."""
    from agentguard_server.viewer.app import build_app
    from agentguard_server.viewer.settings import ViewerSettings

    with TestClient(build_app(store, ViewerSettings()), base_url="http://127.0.0.1") as client:
        answers = [client.get(f"/runs/{run_id}{view}") for view in ("", "?show=findings", "?show=about")]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    return html.unescape("".join(answer.text for answer in answers))
