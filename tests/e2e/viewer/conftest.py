"""A store with sample runs and a recovered run, the viewer over it, and a page in Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from agentguard.store import Store
from tests.chromium import NewContext, browser, context
from tests.viewer_server import Viewer, serving, write_samples

__all__ = ["browser", "context", "viewer", "viewer_page"]


@pytest.fixture(scope="session")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """The viewer over the sample runs; tests that write to a store start one of their own."""
    path = tmp_path_factory.mktemp("viewer") / "store.db"
    with Store.open(path) as store:
        write_samples(store)
        store.flush(30)
    with serving(path) as started:
        yield started


@pytest.fixture
def viewer_page(viewer: Viewer, context: NewContext) -> Page:
    """A page of 1280 by 800 pixels in a context of its own; go to ``viewer.url``."""
    return context(base_url=viewer.url).new_page()
