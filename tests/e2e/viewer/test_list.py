"""The list of runs in a real browser: keys, live updates, and operation without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, RunRow
from tests.chromium import NewContext, save_screenshot
from tests.viewer_server import Viewer, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Viewer, Store]]:
    path = tmp_path_factory.mktemp("list") / "store.db"
    with Store.open(path) as store:
        for i in range(8):
            store.write(RunRow(id=f"r{i}", task=f"task {i}", created_at=1e9 + i))
        store.write(DiagnosisRow(run_id="r3", method="m", verdict="failed", step=2, agent="w", code="x/1"))
        store.flush(10)
        with serving(path) as viewer:
            yield viewer, store


def ids(page: Page) -> list[str]:
    page.wait_for_load_state()
    return [row.get_attribute("data-id") or "" for row in page.locator("tr[data-id]").all()]


def test_list_supports_keyboard(listed: tuple[Viewer, Store], context: NewContext) -> None:
    page = context(base_url=listed[0].url).new_page()
    page.goto("/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator('tr[data-id="r6"] a.open')).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator('tr[data-id="r7"] a.open')).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("task 3")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=task+3")  # empty filters are not part of the address
    assert ids(page) == ["r3"]
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/r3")


def test_changed_runs_update_in_place_and_new_runs_wait(
    listed: tuple[Viewer, Store], context: NewContext
) -> None:
    viewer, store = listed
    page = context(base_url=viewer.url).new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda said: trouble.append(said.text) if said.type == "error" else None)
    page.goto("/")
    before = ids(page)
    store.write(DiagnosisRow(run_id="r5", method="m", verdict="no_failure_found", probability=0.1)).wait(10)
    expect(page.locator('tr[data-id="r5"] .chip.good')).to_have_text("✓ no failure found")
    expect(page.locator("#fresh")).to_be_hidden()
    for i in range(2):
        store.write(RunRow(id=f"new{i}", task="<b>new</b>")).wait(10)
    expect(page.locator("#fresh")).to_be_visible()
    expect(page.locator("#fresh a")).to_have_text("2 new runs – show")
    assert ids(page) == before
    page.locator("#fresh a").click()
    expect(page.locator("tr[data-id]")).to_have_count(len(before) + 2)
    assert set(ids(page)[:2]) == {"new0", "new1"}
    assert trouble == []
    for run in ("new0", "new1"):
        store.delete_run(run)


def test_list_works_without_script(listed: tuple[Viewer, Store], context: NewContext) -> None:
    page = context(base_url=listed[0].url, java_script_enabled=False).new_page()
    page.goto("/")
    page.locator('input[name="verdict"][value="failed"]').check()
    page.locator("form button").first.click()
    expect(page).to_have_url(re.compile("verdict=failed"))
    assert ids(page) == ["r3"]
    page.locator(".active .chip").first.click()
    expect(page.locator("tr[data-id]")).to_have_count(8)
    page.locator(".c-task a").first.click()
    expect(page).to_have_url(re.compile("sort=task"))
    assert ids(page)[0] == "r0"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_list_fits_viewport(
    listed: tuple[Viewer, Store], context: NewContext, width: int, scheme: str
) -> None:
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    page = context(base_url=listed[0].url, **options).new_page()
    page.goto("/?sort=task")
    page.locator(".more summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    save_screenshot(page, f"list-{width}-{scheme}", whole=True)
