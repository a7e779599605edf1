"""The quickstart pages of MCP and of the proxy are correct: their files start the real programs."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from mcp import StdioServerParameters
from mcp.client import Client

from agentguard.store import Store
from tests.contract.claude_agent_driver import OFFLINE
from tests.contract.test_quickstart_pages import RepeatingModel, read_block, run_code
from tests.proxy_server import serving as serving_proxy
from tests.unit.integrations.openai_server import serving as serving_model

MCP_SERVER = Path(__file__).parents[1] / "unit" / "integrations" / "mcp_server.py"
PROXY_URL = "http://127.0.0.1:8080/v1"


def test_configuration_of_mcp_page_guards_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("guard.yaml").write_text(read_block("mcp", "yaml"), encoding="utf-8")
    (server,) = json.loads(read_block("mcp", "json"))["mcpServers"].values()
    arguments = server["args"][: server["args"].index("--") + 1]
    log = tmp_path / "calls"
    parameters = StdioServerParameters(
        command=str(Path(sys.executable).with_name(server["command"])),
        args=[*arguments, sys.executable, str(MCP_SERVER), str(log)],
    )

    async def call_twice() -> str:
        async with Client(parameters) as client:
            await client.list_tools()
            await client.call_tool("charge", {"amount": 5})
            result = await client.call_tool("charge", {"amount": 5})
            return " ".join(block.text for block in result.content if block.type == "text")

    assert asyncio.run(call_twice()) == read_block("mcp", "text").strip()
    assert log.read_text().splitlines() == ["charge 5"]
    with Store.open("runs.db") as store:
        assert store.list_runs().rows


def test_configuration_of_proxy_page_guards_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = RepeatingModel()
    with serving_model(model) as endpoint:
        document = yaml.safe_load(read_block("proxy", "yaml"))
        document["backends"]["replicas"][0]["url"] = endpoint.url
        with serving_proxy(tmp_path, document) as proxy:
            output = run_code("proxy", {PROXY_URL: f"http://127.0.0.1:{proxy.port}/v1"})
    assert output == read_block("proxy", "text")
    assert model.rows == [7, 7, 7, 8]


GUARDED = 'guard.claude_agent_sdk(options, tools={"desk": [find_seat]})'
needs_claude_agent_sdk = pytest.mark.skipif(
    find_spec("claude_agent_sdk") is None, reason="the SDK is missing: pip install claude-agent-sdk"
)


@pytest.fixture
def claude_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the process of the Claude Agent SDK from the network and from the user's own settings."""
    for name, value in {**OFFLINE, "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@needs_claude_agent_sdk
@pytest.mark.usefixtures("claude_settings")
def test_code_of_claude_agent_sdk_page_guards_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    page, model = "claude-agent-sdk", RepeatingModel()
    with serving_model(model) as endpoint:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", endpoint.url.removesuffix("/v1"))
        output = run_code(page, {})
    assert output == "Seat 4 in row 8 is free.\n"
    assert model.rows == [7, 7, 7, 8]


@needs_claude_agent_sdk
@pytest.mark.usefixtures("claude_settings")
def test_configuration_of_claude_agent_sdk_page_guards_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, model = "claude-agent-sdk", RepeatingModel()
    with serving_model(model) as endpoint:
        document = yaml.safe_load(read_block(page, "yaml"))
        document["backends"]["replicas"][0]["url"] = endpoint.url
        with serving_proxy(tmp_path, document) as proxy:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{proxy.port}")
            output = run_code(page, {GUARDED: "options"})
    assert output == "Seat 4 in row 8 is free.\n"
    assert model.rows == [7, 7, 7, 8]
