"""The pages about integrations are correct: their code runs, and the tests that they name exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"`(?:(test_\w+\.py)::)?(test_\w+)`")


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


@pytest.mark.parametrize(
    "code", CODE.findall((ROOT / "docs" / "integrations.md").read_text(encoding="utf-8"))
)
def test_suites_run_as_shown(code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(code, "<docs>", "exec"), names)
    if "test_patience" in names:
        for check in names["strategies"].CHECKS:
            check(names["Patience"])


def test_every_integration_has_an_example() -> None:
    examples = {path.name for path in (ROOT / "examples").glob("guard_*.py")}
    assert examples >= {
        f"guard_{name}.py"
        for name in ("loop", "langchain", "langgraph", "openai", "openai_agents", "pydantic_ai")
    }
    pages = ("recovery.md", "guard-frameworks.md", "guard-http-transports.md", "votes.md")
    text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    for name in examples:
        assert f"examples/{name}" in text
