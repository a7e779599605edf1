"""Guarantees of `import agentguard`."""

import subprocess
import sys

import pytest

import agentguard


def test_import_is_cheap():
    heavy = ("sklearn", "scipy", "numpy", "skops", "pydantic", "rich", "typer", "yaml", "orjson")
    code = f"import sys, agentguard; print(*[m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_public_name_exists():
    for name in agentguard.__all__:
        assert getattr(agentguard, name) is not None


def test_lazy_names_equal_listed_names():
    assert {*agentguard._EXPORTS, "__version__"} == set(agentguard.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agentguard.nothing
