"""Debian's Chromium for tests, driven by Playwright: the installed one, never downloaded.

Import the fixtures in a conftest.py: ``from tests.chromium import browser, context``. If Chromium is not
installed, the tests are skipped; with ``CI=true`` they fail, since CI must provide it.

Playwright's synchronous interface keeps an event loop on its thread, which prevents other loops there. The
browser is therefore closed at the end of its test module. Such a module must not contain asyncio tests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

HOW = "Chromium is not installed: apt-get install -y chromium"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_PATIENCE_MS = 60_000
"""Timeout: elements appear at once, but a busy machine gets a minute."""

NewContext = Callable[..., BrowserContext]


def program() -> str:
    """Return the path of the installed Chromium; if it is missing, skip the test, or fail in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(HOW)
        pytest.skip(HOW)
    return found


def save_screenshot(page: Page, name: str, *, whole: bool = False) -> None:
    """Save a screenshot for people in ``$AGENTGUARD_ARTIFACTS``; without the variable take none.

    No test compares screenshots, and Chromium on a busy machine sometimes fails to take one.
    """
    if folder := os.environ.get("AGENTGUARD_ARTIFACTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder, f"{name}.png"), full_page=whole)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start one Chromium with its own profile for one module."""
    path = program()
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[NewContext]:
    """Create browser contexts with separate cookies and storage; close them after the test."""
    made: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        made.append(browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options}))
        made[-1].set_default_timeout(_PATIENCE_MS)
        return made[-1]

    yield make
    for one in made:
        one.close()
