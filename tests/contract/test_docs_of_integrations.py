"""The pages about integrations are correct: their code runs, and the tests that they name exist."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^## ([^\n]+)$|```python\n(.*?)```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"`(?:(test_\w+\.py)::)?(test_\w+)`")


def blocks(page: str) -> list[tuple[str, str]]:
    """Return each code block with its heading."""
    heading, found = "", []
    for title, code in CODE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        heading = title or heading
        if code:
            found.append((heading, code))
    return found


def execute(code: str, names: dict[str, Any]) -> None:
    """Execute a block, which may await at the top level."""
    compiled = compile(code, "<docs>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(compiled, names)
    if inspect.isawaitable(made):

        async def finish() -> None:
            await made

        asyncio.run(finish())


def test_every_test_named_by_the_page_exists() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    named = NAMED.findall(page)
    assert len(named) > 40
    for file, test in named:
        places = [sources[file]] if file else list(sources.values())
        assert any(f"def {test}(" in text for text in places), f"{file or 'tests'} has no {test}"
    for file in re.findall(r"`(test_\w+\.py)`", page):
        assert file in sources


@pytest.mark.parametrize("code", [code for _, code in blocks("integrations.md")])
def test_suites_run_as_shown(code: str) -> None:
    names: dict[str, Any] = {}
    execute(code, names)
    if "test_patience" in names:
        for check in names["strategies"].CHECKS:
            check(names["Patience"])


def _guarded() -> dict[str, Any]:
    from agentguard.guard import Guard

    guard = Guard()

    @guard.tool(effect="write", idempotency_key="seat")
    def book(seat: int) -> str:
        """Book a seat."""
        return f"seat {seat} is yours"

    return {"guard": guard, "book": book}


def _langchain() -> dict[str, Any]:
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from tests.unit.integrations.test_langchain import Scripted

    made = _guarded()
    return {**made, "model": Scripted(answer=lambda m: AIMessage("Seat 4.")), "tools": [tool(made["book"])]}


def _langgraph() -> dict[str, Any]:
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    made = _langchain()
    graph = create_agent(made["model"], made["tools"], checkpointer=InMemorySaver())
    return {**made, "graph": graph}


def _pydantic_ai() -> dict[str, Any]:
    from pydantic_ai.models.test import TestModel

    return {**_guarded(), "model": TestModel()}


def _openai_agents() -> dict[str, Any]:
    from agents import Agent, set_tracing_disabled
    from agents.testing import ModelStep, ScriptedModel, assistant_message

    set_tracing_disabled(True)
    model = ScriptedModel([ModelStep(output=[assistant_message("Seat 4.")])])
    return {**_guarded(), "agent": Agent(name="clerk", model=model)}


def _stored() -> dict[str, Any]:
    from agentguard.guard import Guard
    from agentguard.store import Store

    return {**_guarded(), "Guard": Guard, "Store": Store}


NAMES: dict[str, Any] = {
    "Any loop of one's own": dict,
    "LangChain": _langchain,
    "LangGraph": _langgraph,
    "pydantic-ai": _pydantic_ai,
    "OpenAI Agents SDK": _openai_agents,
    "OpenAI's client": _guarded,
}
"""Variables that a block may use at the begin of a section."""


@pytest.mark.parametrize("heading", NAMES)
def test_code_of_each_integration_runs_as_shown(
    heading: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.chdir(tmp_path)
    codes = [code for under, code in blocks("recovery.md") if under == heading]
    assert codes, f"docs/recovery.md has no code under {heading!r}"
    names = NAMES[heading]()
    for code in codes:
        execute(code, names)


def test_every_integration_has_an_example() -> None:
    examples = {path.name for path in (ROOT / "examples").glob("guard_*.py")}
    assert examples >= {
        f"guard_{name}.py"
        for name in ("loop", "langchain", "langgraph", "openai", "openai_agents", "pydantic_ai")
    }
    page = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    for name in examples:
        assert f"examples/{name}" in page
