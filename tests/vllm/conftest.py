"""One vLLM for all modules of this folder."""

from __future__ import annotations

import pytest

from tests.vllm_server import vllm, vllm_session

__all__ = ["vllm", "vllm_session"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move tests that kill the shared server to the end, since a restart takes a minute."""
    items.sort(key=lambda item: item.get_closest_marker("kills") is not None)
