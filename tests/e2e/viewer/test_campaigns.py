"""Report of a chaos campaign that is stored beside the runs."""

from __future__ import annotations

import pytest

from tests.chromium import NewContext
from tests.e2e.viewer.watch import Watch, too_wide
from tests.viewer_server import Viewer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1280, 400])
def test_report_is_reached_from_the_navigation(viewer: Viewer, context: NewContext, width: int) -> None:
    page = context(base_url=viewer.url, viewport={"width": width, "height": 900}).new_page()
    watch = Watch(page, viewer.url)
    page.goto("/")
    page.get_by_role("link", name="Campaigns").click()
    page.get_by_role("link", name="booking").click()
    page.wait_for_load_state()
    table = page.get_by_role("region", name="Worst outcome by fault and site")
    assert table.get_by_role("cell", name="unsafe").count() == 1
    assert too_wide(page) == 0
    watch.quiet()
