"""Run the tests of each framework's integration with the lowest and the newest version of the framework.

    python tools/check_compatibility.py [FRAMEWORK…] --table docs/compatibility.md

For each framework and bound, the program creates an environment with the development tools and installs the
framework: the lowest version of its requirement, or the newest version. It then runs the contract suite and
the unit tests of the integration, and replaces the table between the markers of the page.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MARKERS = ("<!-- begin: versions -->", "<!-- end: versions -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Framework with its packages and tests.

    Attributes:
        extra: the extra whose requirements have the floors.
        packages: the packages of the extra whose versions vary.
        tests: arguments of pytest.
        drivers: names of the framework in the contract suite.
    """

    extra: str
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    drivers: str

    def list_requirements(self) -> list[str]:
        """Return the requirements of the packages."""
        found = [Requirement(text) for text in EXTRAS[self.extra]]
        return [str(one) for one in found if one.name in self.packages]


FRAMEWORKS = {
    "langchain": Framework(
        extra="langchain",
        packages=("langchain", "langgraph"),
        tests=("test_langchain.py", "test_langchain_pitfalls.py", "test_langgraph.py"),
        drivers="langchain or langgraph",
    ),
    "openai": Framework(
        extra="chat",
        packages=("openai",),
        tests=(
            "test_openai.py",
            "test_openai_pitfalls.py",
            "test_openai_stream.py",
            "test_openai_responses.py",
        ),
        drivers="openai or openai_async",
    ),
    "openai-agents": Framework(
        extra="openai-agents",
        packages=("openai-agents",),
        tests=("test_openai_agents.py", "test_openai_agents_pitfalls.py", "test_openai_agents_stream.py"),
        drivers="openai_agents",
    ),
    "pydantic-ai": Framework(
        extra="pydantic-ai",
        packages=("pydantic-ai-slim",),
        tests=("test_pydantic_ai.py", "test_pydantic_ai_pitfalls.py"),
        drivers="pydantic_ai",
    ),
    "smolagents": Framework(
        extra="smolagents",
        packages=("smolagents",),
        tests=("test_smolagents.py",),
        drivers="smolagents or smolagents_stream",
    ),
}


def check_framework(framework: Framework, bound: str) -> tuple[str, str]:
    """Return the installed versions and the result of the tests at one bound."""
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/bin/python"
        subprocess.run(["uv", "venv", "--quiet", folder, "--python", sys.executable], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", python]
        subprocess.run([*install, "--editable", ".[dev]"], cwd=ROOT, check=True)
        choice = ["--upgrade"]
        if bound == "lowest":
            # Without a new installation, a version that satisfies the requirement is retained.
            choice = [
                "--resolution",
                "lowest-direct",
                *(f"--reinstall-package={p}" for p in framework.packages),
            ]
        done = subprocess.run(
            [*install, *choice, *framework.list_requirements()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return "–", "cannot be installed: " + " ".join(done.stderr.split())[:300]
        path = next(Path(folder).glob("lib/python*/site-packages"))
        versions = {one.name: one.version for one in distributions(path=[str(path)])}
        names = ", ".join(f"{name} {versions[name]}" for name in framework.packages)
        return names, run_tests(python, framework)


def run_tests(python: str, framework: Framework) -> str:
    """Return the last line of pytest over the contract suite and the unit tests, or the failed tests."""
    base = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120"]
    contract = [*base, "tests/contract/test_integrations.py", "-k", framework.drivers]
    unit = [*base, *(f"tests/unit/integrations/{name}" for name in framework.tests)]
    results = []
    for command in (contract, unit):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        if done.returncode and not failed:
            failed = [done.stdout.strip()[-200:]]
        results += failed
    return "passes" if not results else f"fails: {len(results)} tests, first {results[0]}"


def build_rows(names: list[str]) -> Iterator[str]:
    """Yield the table, one row a framework and bound."""
    yield "| framework | bound | versions | contract suite and tests |"
    yield "|---|---|---|---|"
    for name in names:
        for bound in ("lowest", "newest"):
            versions, result = check_framework(FRAMEWORKS[name], bound)
            print(f"{name} {bound}: {versions}: {result}", flush=True)
            yield f"| {name} | {bound} | {versions} | {result} |"


def main() -> None:
    """Check the frameworks and replace the table of a page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("frameworks", nargs="*", default=list(FRAMEWORKS), help="all by default")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    table = "\n".join(build_rows(list(options.frameworks)))
    if options.table is not None:
        text = options.table.read_text(encoding="utf-8")
        before, after = text.split(MARKERS[0])[0], text.split(MARKERS[1])[1]
        options.table.write_text(f"{before}{MARKERS[0]}\n{table}\n{MARKERS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
