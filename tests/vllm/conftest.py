"""One vLLM for all modules of this folder."""

from __future__ import annotations

import pytest

from tests.vllm_server import vllm, vllm_session

__all__ = ["vllm", "vllm_session"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that kill the shared server come last: others would wait a minute for the next one."""
    items.sort(key=lambda item: item.get_closest_marker("kills") is not None)
