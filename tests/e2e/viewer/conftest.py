"""Fixtures: a store with sample runs and a recovered run, the viewer over it, and a page in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from agentguard.store import Store
from agentguard.store.issues import list_issues, update_issue
from tests import viewer_runs
from tests.chromium import NewContext, browser, context
from tests.unit.batch.test_report import build_failed_row, build_row, write_table
from tests.viewer_server import Viewer, serving, write_campaign, write_evaluation, write_samples

__all__ = ["browser", "context", "own_viewer", "viewer", "viewer_page"]

SAMPLE_RUNS = 8


def filled(folder: Path) -> Path:
    """Create a store with samples, a recovered, a failed and a long run, and files of the other pages."""
    path = folder / "store.db"
    with Store.open(path) as store:
        write_samples(store, most=SAMPLE_RUNS)
        viewer_runs.fill(store, long=(300,))
        store.flush(30)
        (issue, *_) = list_issues(store, min_runs=1)
        update_issue(store, issue.id, owner="Ann Lee")
    write_evaluation(folder / ".agentguard" / "evals")
    write_campaign(folder / ".agentguard" / "chaos" / "booking")
    (folder / "verdicts").mkdir()
    write_table(folder / "verdicts", [build_failed_row(0), build_row(1, "no_failure_found")])
    return path


@pytest.fixture(scope="session")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """Start a viewer over a shared store; tests that write to a store use `own_viewer`."""
    path = filled(tmp_path_factory.mktemp("viewer"))
    with serving(path, str(path.parent / "verdicts")) as started:
        yield started


@pytest.fixture
def own_viewer(tmp_path: Path) -> Iterator[Viewer]:
    """Start a viewer over a separate store with the recovered run and another run."""
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        viewer_runs.fill(store, long=())
        store.flush(30)
    with serving(path) as started:
        yield started


@pytest.fixture
def viewer_page(viewer: Viewer, context: NewContext) -> Page:
    """Open a page of 1280 by 800 pixels in a new context; its addresses are relative to the viewer."""
    return context(base_url=viewer.url).new_page()
