"""The documentation is correct: links resolve, commands are described, shown output is real."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from agentguard.cli.app import build_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "datasets/**/*.md", "examples/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SHOWN = re.compile(r"<!-- output of: (.+?) -->\s*```[a-z]*\n(.*?)```", re.DOTALL)


def commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Return every leaf command with its full name."""
    if hasattr(command, "commands"):
        context = typer.Context(command)
        names = command.list_commands(context)
        return [
            leaf for name in names for leaf in commands(command.get_command(context, name), (*path, name))
        ]
    return [(" ".join(path), command)]


LEAVES = commands(typer.main.get_command(build_app()))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_command_and_options_are_documented(name, command):
    page = ROOT / "docs" / "cli" / f"{name.split()[0]}.md"
    assert page.exists(), f"there is no page {page.relative_to(ROOT)}"
    text = page.read_text(encoding="utf-8")
    heading = f"## agentguard {name}"
    assert heading in text, f"{page.name} lacks a section {heading!r}"
    assert f"({page.name})" in (page.parent / "README.md").read_text(encoding="utf-8")
    section = text.split(heading + "\n", 1)[1].split("\n## ", 1)[0]
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden and "--help" not in parameter.opts:
            assert f"`{parameter.opts[0]}" in section, f"{heading} does not describe {parameter.opts[0]}"


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_output_option_has_one_name(name, command):
    for parameter in command.params:
        if parameter.param_type_name == "option" and {"--out", "--output", "-o"} & set(parameter.opts):
            assert parameter.opts == ["--output", "-o"], name


def shown() -> list[tuple[str, str, str]]:
    """Return (page, command, text) of every output that a page shows."""
    return [
        (page.name, command, text)
        for page in PAGES
        for command, text in SHOWN.findall(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("page", "command", "text"), shown(), ids=lambda v: str(v)[:40])
def test_shown_output_is_real(page, command, text, monkeypatch):
    """Each block of a shown output, separated by a line with only an ellipsis, is part of the real output."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "110")
    program, *arguments = shlex.split(command)
    assert program == "agentguard"
    result = CliRunner().invoke(build_app(), arguments)
    real = _lines(result.output)
    for block in re.split(r"^…$", text, flags=re.MULTILINE):
        wanted = _lines(block)
        assert wanted in real, f"{page}: this is not in the output of {command!r}:\n{wanted}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_yaml_blocks_are_valid_yaml(page):
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```ya?ml\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        yaml.safe_load(block)


IMPORT = re.compile(r"^\s*from (agentguard(?:_server)?(?:\.\w+)+) import", re.MULTILINE)
FACADES = {"agentguard.errors", "agentguard.trajectory.formats.sdk"}


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(ROOT.glob("examples/*.py"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_shown_imports_name_packages(page):
    """Documents and examples import from packages, since modules within a package can change."""
    for name in IMPORT.findall(page.read_text(encoding="utf-8")):
        folder = ROOT / ("server" if name.startswith("agentguard_server") else ".") / name.replace(".", "/")
        assert name in FACADES or folder.is_dir(), f"{page.name} imports from the module {name}"


def _lines(text: str) -> str:
    """Return lines without trailing blanks and without empty lines at the ends."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def test_fault_cases_name_existing_tests() -> None:
    text = (ROOT / "docs" / "proxy-fault-cases.md").read_text(encoding="utf-8")
    cases = [line for line in text.splitlines() if line.endswith("` |")]
    assert len(cases) >= 40
    sources = "".join(one.read_text(encoding="utf-8") for one in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in sources] == []


def test_documentation_site_contains_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(_list_pages(nav)) == sorted(pages)


def _list_pages(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    values = node.values() if isinstance(node, dict) else node
    return [page for value in values for page in _list_pages(value)]
