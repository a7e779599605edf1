"""The page names every error, event and strategy, and its first example runs."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentguard import errors
from agentguard.errors import BackendError
from agentguard.resilience import EventKind, HostBalancer, build_standard_strategies
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import TOKENS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "resilience.md").read_text(encoding="utf-8")
ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, errors.ResilienceError)
    and kind is not errors.ResilienceError
]


@pytest.mark.parametrize("kind", ERRORS)
def test_page_names_every_error(kind):
    assert f"| `{kind.__name__}` | `{kind.code}` |" in PAGE


@pytest.mark.parametrize("kind", EventKind)
def test_page_names_every_event(kind):
    assert f"`{kind}`" in PAGE


@pytest.mark.parametrize(
    "name", [type(s).__name__ for s in build_standard_strategies()] + [HostBalancer.__name__]
)
def test_page_names_every_strategy(name):
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("status", [200, 404])
def test_example_runs(status, capsys):
    """Only its client is scripted; the rest is unchanged."""
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    setup, call = code.split("answer = await ")
    clock = VirtualClock()

    async def chunks():
        for token in TOKENS:
            yield token

    async def post(url, *, json, timeout):
        return SimpleNamespace(status=status, headers={}, chunks=chunks)

    names = {"client": SimpleNamespace(post=post), "URL": "http://localhost"}
    exec(setup, names)
    assert capsys.readouterr().out.splitlines()[0] == "1. timeout total_s=60"

    async def main():
        answer = await eval(call, names)
        return [chunk async for chunk in answer]

    if status == 200:
        assert clock.run(main()) == list(TOKENS)
    else:
        with pytest.raises(BackendError):
            clock.run(main())
