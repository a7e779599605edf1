"""Issues in a real browser: from a run to its issue, the change, and back."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.chromium import NewContext
from tests.e2e.viewer.watch import Watch
from tests.viewer_server import Viewer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scripts", [True, False])
def test_issue_of_a_run_is_resolved_with_a_form(
    own_viewer: Viewer, context: NewContext, scripts: bool
) -> None:
    page = context(base_url=own_viewer.url, java_script_enabled=scripts).new_page()
    watch = Watch(page, own_viewer.url)
    page.goto("/runs/unrecovered-total")
    page.locator(".crumbs a", has_text="Issue").click()
    page.get_by_label("Owner").fill("Ann Lee")
    page.get_by_label("State").select_option("resolved")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("main .chip").first).to_have_text("resolved")
    page.get_by_role("link", name="Issues").first.click()
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Ann Lee")
    row.get_by_role("link").click()
    page.locator("tbody a").click()
    page.wait_for_url("**/runs/unrecovered-total*")
    watch.quiet()
