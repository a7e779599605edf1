"""One vLLM for all modules of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judge_process import Serving, serving
from tests.vllm_server import CPU_ENVIRONMENT, CPU_FLAGS, vllm, vllm_session
from tests.vllm_setup import PYTHON, WEIGHTS, missing

__all__ = ["vllm", "vllm_session"]

FLAGS = (
    "--max-model-len",
    "4096",
    "--offline",
    "--health-interval",
    "1",
    "--probe-interval",
    "30",
    "--startup-timeout",
    "600",
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    if lacking := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(lacking)
        pytest.skip(lacking)
    log = ("--log", str(tmp_path / "server.log"))
    with serving(
        str(WEIGHTS), PYTHON, *FLAGS, *log, "--", *CPU_FLAGS, environment=CPU_ENVIRONMENT
    ) as process:
        yield process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move tests that kill the shared server to the end, since a restart takes a minute."""
    items.sort(key=lambda item: item.get_closest_marker("kills") is not None)
