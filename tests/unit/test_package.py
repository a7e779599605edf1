"""Guarantees of `import agentguard`."""

import subprocess
import sys
from importlib import import_module

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


PACKAGES = (
    "backends",
    "batch",
    "bundles",
    "chaos",
    "config",
    "detect",
    "evals",
    "intercept",
    "judge",
    "localize",
    "otlp",
    "recover",
    "runtime",
    "schemata",
    "store",
    "taxonomy",
    "testing",
    "trace_sources",
    "trajectory",
)


@pytest.mark.parametrize("name", [*(f"agentguard.{one}" for one in PACKAGES), "agentguard_server.viewer"])
def test_every_exported_name_of_a_package_exists(name):
    package = import_module(name)
    assert dir(package)
    for exported in dir(package):
        assert getattr(package, exported) is not None


def test_exports_do_not_load_modules():
    names = ", ".join(f"agentguard.{one}" for one in PACKAGES)
    code = f"import sys, {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.startswith("agentguard.")]
    assert [name for name in loaded if name.count(".") > 1] == []
