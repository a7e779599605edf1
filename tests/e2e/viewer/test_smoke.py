"""The viewer answers a browser at all."""

from __future__ import annotations

from playwright.sync_api import Page


def test_opens(viewer_page: Page) -> None:
    response = viewer_page.goto("/static/base.css")
    assert response is not None
    assert response.status == 200
