"""Navigation from the list of runs to the root cause, its evidence, branches, feedback and export."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from agentguard.store import Store
from tests.chromium import NewContext, save_screenshot
from tests.e2e.viewer.conftest import SAMPLE_RUNS
from tests.e2e.viewer.watch import Watch, too_wide
from tests.viewer_runs import RECOVERED
from tests.viewer_server import Viewer

pytestmark = pytest.mark.slow

ALL_RUNS = SAMPLE_RUNS + 3
PAGES = {
    "runs": "/",
    "search": "/search?q=the",
    "failures": "/failures",
    "issues": "/issues",
    "batches": "/batches",
    "evals": "/evals",
    "campaigns": "/campaigns",
    "run": f"/runs/{RECOVERED}",
    "lost": "/runs/unrecovered-total",
    "branches": f"/runs/{RECOVERED}?show=branches",
    "outline": "/runs/unrecovered-total?show=outline",
    "graph": "/runs/unrecovered-total?show=graph",
    "effects": f"/runs/{RECOVERED}?show=effects",
    "findings": f"/runs/{RECOVERED}?show=findings",
    "long": "/runs/long-300",
}
SCREENS = [(1280, "light"), (400, "dark")]
"""Widths and color schemes: each value once, and all combinations in `make test-all`."""
if os.environ.get("AGENTGUARD_TEST_ALL"):
    SCREENS += [(1280, "dark"), (400, "light")]


def rows(page: Page) -> int:
    return page.locator("#runs tbody tr").count()


def test_walk_from_list_to_root_cause(viewer: Viewer, viewer_page: Page, tmp_path: Path) -> None:
    page, watch = viewer_page, Watch(viewer_page, viewer.url)
    page.goto("/")
    assert rows(page) == ALL_RUNS
    page.locator('input[name="verdict"][value="failed"]').check()
    expect(page).to_have_url(re.compile(r"verdict=failed"))
    page.wait_for_load_state()
    failed = rows(page)
    assert 0 < failed < ALL_RUNS
    page.get_by_role("link", name="steps").first.click()
    expect(page).to_have_url(re.compile(r"sort=steps"))
    expect(page.locator("#runs tbody tr")).to_have_count(failed)
    save_screenshot(page, "walk-1-list")

    page.goto("/?q=quarter")
    page.locator("a.open").filter(has_text="quarter").first.click()
    page.goto("/runs/unrecovered-total")
    root = page.locator("#step-4")
    expect(root).to_contain_text("root cause")
    save_screenshot(page, "walk-2-run")
    reference = page.locator("a.ref").first
    reference.click()
    expect(page).to_have_url(re.compile("#."))
    target = page.url.partition("#")[2]
    assert page.locator(f"#step-4 [id='{target}']").count() == 1
    mark = page.locator("#step-4 mark").first
    expect(mark).to_be_in_viewport()
    assert "37.5" in page.locator("#step-4 mark").all_inner_texts()[0]
    save_screenshot(page, "walk-3-evidence")

    page.goto(f"/runs/{RECOVERED}")
    page.get_by_role("link", name="Branches").click()
    expect(page.locator(".sides").first).to_contain_text("Abandoned")
    page.wait_for_load_state()
    assert page.locator(".pair").count() > 0
    save_screenshot(page, "walk-4-branches")
    page.get_by_role("link", name="Effects").click()
    for fate in ("executed", "undone", "reused", "unknown outcome"):
        expect(page.locator("main")).to_contain_text(fate)
    save_screenshot(page, "walk-5-effects")

    with page.expect_download() as loaded:
        page.get_by_role("link", name="HTML file").click()
    file = tmp_path / "run.html"
    loaded.value.save_as(file)
    whole = page.context.new_page()
    outside = Watch(whole, None)
    whole.goto(file.as_uri())
    expect(whole.locator("body")).to_contain_text("Lisbon")
    assert "<script" not in file.read_text(encoding="utf-8")
    save_screenshot(whole, "walk-6-export")
    outside.quiet()
    with page.expect_download() as loaded:
        page.get_by_role("link", name="ATIF").click()
    assert json.loads(loaded.value.path().read_text())
    watch.quiet()


def test_failures_and_evaluations_are_linked(viewer: Viewer, viewer_page: Page) -> None:
    page, watch = viewer_page, Watch(viewer_page, viewer.url)
    page.goto("/")
    page.get_by_role("link", name="Failures", exact=True).click()
    expect(page.locator(".multiples svg").first).to_be_visible()
    page.get_by_role("link", name="by day").click()
    expect(page).to_have_url(re.compile("by=day"))
    page.locator(".multiples figcaption a").first.click()
    expect(page).to_have_url(re.compile("verdict=failed"))
    page.wait_for_load_state()
    assert 0 < rows(page) < ALL_RUNS
    page.get_by_role("link", name="Evaluations").click()
    page.get_by_role("button", name="Compare A with B").click()
    expect(page.locator("main")).to_contain_text("McNemar")
    page.wait_for_load_state()  # the script of the form runs last
    page.locator("select[name=show]").select_option("neither")
    expect(page).to_have_url(re.compile("show=neither"))
    save_screenshot(page, "walk-7-compare")
    page.locator("main table a[href*='/runs/']").first.click()
    expect(page).to_have_url(re.compile(r"/runs/.*#step-\d+"))
    page.goto("/evals")
    page.locator("h2 a").first.click()
    expect(page.locator(".report svg").first).to_be_visible()
    save_screenshot(page, "walk-8-eval", whole=True)
    watch.quiet()


def test_list_supports_keyboard_navigation(viewer: Viewer, viewer_page: Page) -> None:
    page, watch = viewer_page, Watch(viewer_page, viewer.url)
    page.goto("/")
    for key in ("j", "j", "k"):
        page.keyboard.press(key)
    first = page.locator("a.open").first
    expect(first).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("Lisbon")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("q=Lisbon"))
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    page.wait_for_load_state()  # the script with the key bindings runs last
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/runs/{RECOVERED}"))
    watch.quiet()


def test_run_page_supports_keyboard_navigation(viewer: Viewer, viewer_page: Page) -> None:
    page, watch = viewer_page, Watch(viewer_page, viewer.url)
    page.goto("/runs/unrecovered-total")
    page.keyboard.press("r")
    expect(page).to_have_url(re.compile("#step-4$"))
    expect(page.locator("#step-4")).to_be_in_viewport()
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile("#step-5$"))
    page.keyboard.press("k")
    expect(page).to_have_url(re.compile("#step-4$"))
    page.goto("/runs/long-300")
    found = str(page.locator(".run").get_attribute("data-findings")).split()
    assert len(found) > 1
    for step in (found[0], found[1]):
        page.keyboard.press("n")
        expect(page).to_have_url(re.compile(f"#step-{step}$"))
    page.keyboard.press("?")
    expect(page.locator("dialog#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#help")).to_be_hidden()
    watch.quiet()


def read_view(page: Page) -> tuple[str, str]:
    """Return the text of the page without its steps, and the text of the step in the address.

    The viewer loads the other steps as they come near, so their number depends on time.
    """
    target = page.url.partition("#")[2]
    step = page.locator(f"#{target}").inner_text() if target else ""
    page_text = page.evaluate(
        """() => {
            const copy = document.querySelector("main").cloneNode(true);
            copy.querySelector("#steps")?.remove();
            return copy.textContent;
        }"""
    )
    return page_text, step


@pytest.mark.parametrize(
    "path",
    [
        "/?verdict=failed&sort=steps&dir=asc&q=task&limit=25",
        "/?code=mast&recovered=yes",
        f"/runs/{RECOVERED}?show=branches",
        "/runs/long-300?step=250#step-255",
        "/failures?by=day",
    ],
)
def test_view_state_is_in_address(viewer_page: Page, path: str) -> None:
    page = viewer_page
    page.goto(path)
    text, address = read_view(page), page.url
    page.reload()
    assert page.url == address
    assert read_view(page) == text
    page.goto("/evals")
    page.go_back()
    assert page.url == address
    if "#step" in path:
        expect(page.locator(f"#{path.partition('#')[2]}")).to_be_in_viewport()


def test_run_of_another_process_appears(own_viewer: Viewer, context: NewContext) -> None:
    page = context(base_url=own_viewer.url).new_page()
    watch = Watch(page, own_viewer.url)
    page.goto("/")
    before = rows(page)
    code = (
        "import sys; from agentguard.store import Store; from tests import viewer_runs as v\n"
        "with Store.open(sys.argv[1]) as s: s.write_run(v.long_run(12, id='just-now')); s.flush(20)"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", code, str(own_viewer.store)], check=True, cwd=root, timeout=60)
    expect(page.locator("#fresh a")).to_contain_text("1 new run")
    save_screenshot(page, "live-list")
    page.locator("#fresh a").click()
    expect(page.locator('tr[data-id="just-now"]')).to_be_visible()
    expect(page.locator("#runs tbody tr")).to_have_count(before + 1)
    watch.quiet()


def test_feedback_is_stored(own_viewer: Viewer, context: NewContext) -> None:
    page = context(base_url=own_viewer.url).new_page()
    watch = Watch(page, own_viewer.url)
    page.goto("/runs/unrecovered-total")
    page.get_by_text("Correction", exact=True).click()
    page.locator("#j-step").fill("6")
    page.locator("#j-note").fill("The price came from nowhere <b>before</b>.")
    page.get_by_role("button", name="Wrong").click()
    expect(page.locator(".judge")).to_contain_text("came from nowhere <b>before</b>")
    save_screenshot(page, "judged")
    with Store.open(own_viewer.store) as store:
        (found,) = store.list_judgements("unrecovered-total")
    assert found.right is False
    assert found.data["step"] == 6
    page.goto("/?judged=yes")
    assert rows(page) == 1
    watch.quiet()


def test_all_pages_work_without_script(viewer: Viewer, context: NewContext) -> None:
    page = context(base_url=viewer.url, java_script_enabled=False).new_page()
    page.goto("/")
    page.locator('input[name="verdict"][value="failed"]').check()
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page).to_have_url(re.compile("verdict=failed"))
    page.goto("/runs/long-300")
    assert page.locator("article.turn").count() > 10
    before = page.url
    page.get_by_role("link", name=re.compile("Steps .* of 300")).click()
    expect(page).not_to_have_url(before)
    expect(page.locator("article.turn").nth(10)).to_be_attached()
    page.goto("/evals")
    page.get_by_role("button", name="Compare A with B").click()
    expect(page).to_have_url(re.compile("/compare"))
    expect(page.locator("main table")).to_have_count(2)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_viewport(viewer: Viewer, context: NewContext, name: str, width: int, scheme: str) -> None:
    page = context(
        base_url=viewer.url, viewport={"width": width, "height": 900}, color_scheme=scheme
    ).new_page()
    watch = Watch(page, viewer.url)
    page.goto(PAGES[name])
    save_screenshot(page, f"page-{name}-{width}-{scheme}")
    assert too_wide(page) == 0
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", ground)[:3])) > 384
    assert light == (scheme == "light")
    watch.quiet()
