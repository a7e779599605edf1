"""The page names every option, policy, status and note, and its first example is valid."""

import ast
import asyncio
import re
from pathlib import Path

import pytest

from agentguard.backends import status
from agentguard.backends.config import (
    BackendsOptions,
    HealthOptions,
    ProbeOptions,
    QuorumOptions,
    ReplicaOptions,
)
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.load_balancing.base import get_policy_factory, list_policies
from agentguard.testing.fake_backend import FakeBackend
from tests.unit.backends.pool_fixtures import Scene, ok

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "backends.md").read_text(encoding="utf-8")
SECTIONS = (BackendsOptions, ReplicaOptions, HealthOptions, ProbeOptions)
OPTIONS = sorted({name for section in SECTIONS for name in section.model_fields})


@pytest.mark.parametrize("name", [*OPTIONS, *HttpLimits.__dataclass_fields__])
def test_page_names_every_option(name):
    assert f"`{name}`" in PAGE or f"{name}:" in PAGE


@pytest.mark.parametrize("name", QuorumOptions.model_fields)
def test_page_names_every_vote_option(name):
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", list_policies())
def test_page_names_every_policy_and_its_options(name):
    assert f"| `{name}` |" in PAGE
    for option in get_policy_factory(name).__dataclass_fields__:
        assert f"`{option}" in PAGE


def test_page_names_every_state():
    source = Path(status.__file__).read_text(encoding="utf-8")
    for state in {*re.findall(r'^        \("(\w+)"', source, re.M), "up", "leaving"}:
        assert f"`{state}`" in PAGE


def test_shown_order_is_the_default():
    lines = Scene(a=[ok()], b=[ok()], c=[ok()]).pool.explain()
    shown = re.search(r"```\n(1\. .*?)```", PAGE, re.S).group(1).splitlines()
    for line, real in zip(shown, lines, strict=False):
        assert re.sub(r"=\(\.\.\.\)", "=(", line).split("(")[0] == real.split("(")[0]


def test_shown_configuration_is_valid(monkeypatch):
    import yaml

    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S):
        assert len(BackendsOptions.parse(yaml.safe_load(block)["backends"]).replicas) == 3


def test_first_example_runs():
    code = re.search(r"```python\n(.*?)```", PAGE, re.S).group(1)
    body = b'{"model": "qwen3", "messages": [{"role": "user", "content": "hello"}]}'
    with FakeBackend() as one, FakeBackend() as other:
        code = code.replace("http://127.0.0.1:8000/v1", one.url).replace(
            "http://127.0.0.1:8001/v1", other.url
        )
        names = {"body": body}
        running = eval(compile(code, "backends.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        asyncio.run(running)
    assert names["answer"].status == 200
