"""The code of each quickstart page runs as shown: the guard acts, and the output is that of the page."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import itertools
import json
import linecache
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from tests.support.trace_server import LangfuseContract, LangSmithContract, PhoenixContract, Product, serve
from tests.unit.integrations import anthropic_server, openai_responses_server, openai_server
from tests.unit.integrations.openai_server import Body, serving
from tests.unit.trajectory.formats.samples import SAMPLES, lines, sample

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "quickstart"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FRAMEWORKS = {
    "own-loop": "openai",
    "openai": "openai",
    "anthropic": "anthropic",
    "langchain": "langchain_openai",
    "langgraph": "langchain_openai",
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "smolagents": "smolagents",
    "llama-index": "llama_index.llms.openai",
    "agent-framework": "agent_framework.openai",
    "google-adk": "google.adk",
    "crewai": "crewai",
}
"""Module of each page with an agent; docs/integrations.md has the environments of the last four."""
PROBABILITY = re.compile(r"\bp(\((failed|step)\))? [01]\.\d\d")
ANSWER = "Seat 4 in row 8 is free."


def read_block(page: str, language: str) -> str:
    """Return the first block of a language."""
    blocks = BLOCK.findall((FOLDER / f"{page}.md").read_text(encoding="utf-8"))
    return str(next(block for name, block in blocks if name == language))


def _date_langfuse_traces() -> dict[str, dict[str, Any]]:
    """Return two traces of the last hour."""
    document = sample("langfuse.json")
    now = datetime.now(tz=UTC)
    times = {f"trip-{age}": (now - timedelta(minutes=age)).isoformat() for age in (1, 2)}
    return {
        id: {
            **document["trace"],
            "id": id,
            "timestamp": time,
            "updatedAt": time,
            "observations": document["observations"],
        }
        for id, time in times.items()
    }


class RepeatingModel:
    """Model that asks for row 7 until the request contains a hint of the guard; then it asks for row 8."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self.rows: list[int] = []

    def __call__(self, body: Body) -> Any:
        text = json.dumps(body.get("messages") or body.get("contents") or body["input"])
        answer = self._say if "seat 4 in row 8 is free" in text else self._call
        return answer(body, 8 if "[guard]" in text else 7)

    def _call(self, body: Body, row: int) -> Any:
        self.rows.append(row)
        id = f"call-{next(self._ids)}"
        if "contents" in body:
            return _generate({"functionCall": {"name": "find_seat", "args": {"row": row}}})
        if "input" in body:
            return self._respond(body, openai_responses_server.called("find_seat", id, row=row))
        if "max_tokens" in body:
            (name,) = (tool["name"] for tool in body["tools"] if tool["name"].endswith("find_seat"))
            return self._send_message(body, anthropic_server.uses(name, id, row=row))
        return _complete(body, openai_server.call("find_seat", id, row=row))

    def _say(self, body: Body, row: int) -> Any:
        if "contents" in body:
            return _generate({"text": ANSWER})
        if "input" in body:
            return self._respond(body, openai_responses_server.said(ANSWER))
        if "max_tokens" in body:
            return self._send_message(body, anthropic_server.says(ANSWER))
        if any(tool["function"]["name"] == "final_answer" for tool in body["tools"]):
            return _complete(body, openai_server.call("final_answer", "call-final", answer=ANSWER))
        return _complete(body, openai_server.say(ANSWER))

    def _send_message(self, body: Body, block: Body) -> Any:
        # The process of the Claude Agent SDK joins messages with one id.
        message = anthropic_server.message(block, id=f"msg_{next(self._ids)}")
        return anthropic_server.events(message) if body.get("stream") else message

    def _respond(self, body: Body, item: Body) -> Any:
        made = openai_responses_server.response(f"resp-{next(self._ids)}", [item])
        return openai_responses_server.events(made) if body.get("stream") else made


def _complete(body: Body, message: Body) -> Any:
    return openai_server.chunks(message) if body.get("stream") else openai_server.completion(message)


def _generate(part: Body) -> Body:
    """Return a response of Gemini's API with one part."""
    return {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}


@pytest.fixture(autouse=True)
def event_loop_of_thread() -> Iterator[None]:
    """Provide the loop that `run_sync` of some frameworks would create and leave open."""
    gc.freeze()  # the collection below visits only objects of this test
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
    gc.collect()


# The pages are programs: their clients stay open until the program ends.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("page", FRAMEWORKS)
def test_code_of_quickstart_prints_the_output_of_the_page(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(FRAMEWORKS[page])
    if "'agentguard[chat]'" in (FOLDER / f"{page}.md").read_text(encoding="utf-8"):
        pytest.importorskip("openai", minversion="3")
    model = RepeatingModel()
    with serving(model) as server:
        for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            monkeypatch.setenv(name, server.url)
        for name in ("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
            monkeypatch.setenv(name, server.url.removesuffix("/v1"))
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.setenv(name, "none")
        for name in ("OPENAI_AGENTS_DISABLE_TRACING", "CREWAI_TESTING"):
            monkeypatch.setenv(name, "1")
        for name in ("CREWAI_DISABLE_TELEMETRY", "OTEL_SDK_DISABLED"):
            monkeypatch.setenv(name, "true")
        monkeypatch.chdir(tmp_path)
        output = run_code(page)
    lines = [line.rstrip() for line in output.splitlines()]
    if page == "crewai":  # it logs in frames
        lines = [line for line in lines if line and line[0] not in "╭│╰"]
    assert lines == read_block(page, "text").splitlines()
    assert model.rows == [7, 7, 7, 8]


def run_code(page: str, replacements: Mapping[str, str] | None = None) -> str:
    """Run the code of a page with replaced texts; return its output."""
    source = read_block(page, "python")
    for old, new in (replacements or {}).items():
        source = source.replace(old, new)
    name = f"{page}.py"
    # smolagents reads the source of its tools.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    code = compile(source, name, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {"__name__": "__main__"})
    return output.getvalue()


@pytest.mark.parametrize(
    ("page", "product"),
    [
        ("langfuse", LangfuseContract(traces=_date_langfuse_traces())),
        ("langsmith", LangSmithContract(project="my-project", runs=lines("langsmith.jsonl"))),
        ("phoenix", PhoenixContract(project="my-project", spans=sample("otel_spans.json")["data"])),
    ],
)
def test_commands_of_tracing_product_print_the_output_of_the_page(
    page: str, product: Product, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGSMITH_API_KEY": "ls-key"}
    with serve(product) as url:
        addresses = ("LANGFUSE_BASE_URL", "LANGSMITH_ENDPOINT", "PHOENIX_COLLECTOR_ENDPOINT")
        for name, value in {**keys, **dict.fromkeys(addresses, url)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        check_commands(page)


def test_commands_of_opentelemetry_print_the_output_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(SAMPLES / "otlp_json.openinference.jsonl", tmp_path / "traces.jsonl")
    monkeypatch.chdir(tmp_path)
    check_commands("opentelemetry")


def test_commands_of_coding_agents_print_the_output_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    project = re.sub(r"[^A-Za-z0-9]", "-", str(tmp_path))
    for name, source in (
        (f"claude/projects/{project}/1.jsonl", "claude_code.jsonl"),
        ("codex/sessions/2026/04/03/rollout-1.jsonl", "codex_cli.jsonl"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(SAMPLES / source, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    check_commands("coding-agents")


def check_commands(page: str) -> None:
    """Run the commands of the first block; the output of the first one contains that of the page."""
    pytest.importorskip("alembic", reason="needs the extra store")
    commands = [
        shlex.split(line.removeprefix("$ agentguard "))
        for line in read_block(page, "console").splitlines()
        if line.startswith("$ agentguard ")
    ]
    results = [CliRunner().invoke(build_app(), command, env={"COLUMNS": "120"}) for command in commands]
    for command, result in zip(commands, results, strict=True):
        assert result.exit_code == 0, (command, result.output)
    assert _normalize(read_block(page, "text")) in _normalize(results[0].output)


def _normalize(report: str) -> str:
    """Return a report without trailing blanks and probabilities, which change with the trained model."""
    lines = (PROBABILITY.sub("p 0.00", line.rstrip()) for line in report.splitlines())
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES)
def test_quickstart_page_is_short_and_its_extras_exist(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert f"]({page}.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name for names in re.findall(r"agentguard\[([\w,-]+)\]", text) for name in names.split(",")}
    assert extras <= set(project["optional-dependencies"])
    assert "pip install" in text
