"""Hostile corpus: no text of a run executes, opens a dialog, sends a request or links elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from agentguard.store import Store
from tests.chromium import NewContext, save_screenshot
from tests.e2e.viewer.watch import Watch, too_wide
from tests.hostile import FLAG, PAYLOADS, hostile_run, hostile_sheet, write_hostile
from tests.viewer_server import Viewer, serving

pytestmark = pytest.mark.slow

TABS = (
    "",
    "?show=outline",
    "?show=graph",
    "?show=branches",
    "?show=effects",
    "?show=findings",
    "?show=about",
)
_TOUCH = """() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  for (const one of document.querySelectorAll("body *")) {
    for (const kind of ["mouseover", "mouseenter", "focus"]) one.dispatchEvent(new Event(kind));
  }
}"""
_INSIDE = """() => {
  const found = [...document.querySelectorAll(
    "iframe, object, embed, base, img, meta[http-equiv='refresh'], script:not([src])"
  )].map((one) => one.outerHTML.slice(0, 120));
  for (const one of document.querySelectorAll("*")) {
    for (const name of one.getAttributeNames()) {
      const value = one.getAttribute(name).trim().toLowerCase();
      if (one.rel === "icon" && value === "data:,") continue;
      if (name.startsWith("on") || name === "srcdoc") found.push(`${name}=${value}`);
      if (["href", "src", "action", "formaction", "xlink:href"].includes(name)) {
        const to = new URL(one.getAttribute(name), document.baseURI);
        if (to.origin !== location.origin && !(location.protocol === "file:" && value.startsWith("#")))
          found.push(`${name}=${value}`);
      }
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Viewer, tuple[str, ...]]]:
    """Start the viewer over the hostile corpus; return it with the ids of its runs."""
    folder = tmp_path_factory.mktemp("hostile")
    with Store.open(folder / "store.db") as store:
        ids = write_hostile(store)
    evals = folder / ".agentguard" / "evals"
    evals.mkdir(parents=True)
    sheet = json.dumps(hostile_sheet(ids), separators=(",", ":"), ensure_ascii=False)
    (evals / "<img src=x onerror=alert(1)>.json").write_text(sheet, encoding="utf-8")
    with serving(folder / "store.db") as started:
        yield started, ids


def harmless(page: Page, watch: Watch, *, refused: bool = False) -> None:
    """Interact with everything on a page and check for side effects; ``refused`` allows a 4xx response."""
    page.evaluate(_TOUCH)
    assert page.evaluate("window.__pwned") is None
    assert page.evaluate(_INSIDE) == []
    if refused:
        watch.wrong = [one for one in watch.wrong if "status of 4" not in one]
    watch.quiet()


def test_every_text_of_corpus_is_an_attack() -> None:
    record, diagnosis, recoveries = hostile_run(0)
    texts = [str(record.trajectory), str(diagnosis), str(recoveries)]
    for payload in PAYLOADS[:6]:
        assert all(payload.replace("'", "\\'") in one or payload in one for one in texts)
    assert FLAG in record.trajectory.steps[0].tool_calls[0].name


@pytest.mark.parametrize("first", range(len(PAYLOADS)))
def test_run_page_executes_no_attack(
    hostile: tuple[Viewer, tuple[str, ...]], context: NewContext, tmp_path: Path, first: int
) -> None:
    viewer, ids = hostile
    page = context(base_url=viewer.url).new_page()
    watch = Watch(page, viewer.url)
    base = f"/runs/{quote(ids[first], safe='')}"
    for tab in TABS:
        answer = page.goto(base + tab)
        assert answer is not None
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        harmless(page, watch)
    page.goto(f"{base}?q={quote(PAYLOADS[first].encode('utf-8', 'replace').decode(), safe='')}")
    harmless(page, watch)
    page.goto(base)
    with page.expect_download() as loaded:
        page.get_by_role("link", name="HTML file").click()
    loaded.value.save_as(tmp_path / "run.html")
    alone = page.context.new_page()
    outside = Watch(alone, None)
    alone.goto((tmp_path / "run.html").as_uri())
    alone.evaluate(_TOUCH)
    assert alone.evaluate("window.__pwned") is None
    assert alone.locator("script, iframe, object, embed, base, form").count() == 0
    outside.quiet()


@pytest.mark.parametrize(
    "path", ["/", "/failures", "/evals", "/?sort=task&q=%3Cscript%3E", "/failures?by=day"]
)
def test_list_pages_execute_no_attack(
    hostile: tuple[Viewer, tuple[str, ...]], context: NewContext, path: str
) -> None:
    viewer, _ = hostile
    page = context(base_url=viewer.url).new_page()
    watch = Watch(page, viewer.url)
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == 200
    harmless(page, watch)
    name = path.strip("/").partition("?")[0] or "runs"
    save_screenshot(page, f"hostile-{name}")
    page.set_viewport_size({"width": 400, "height": 800})
    assert too_wide(page) == 0


def test_evaluation_pages_execute_no_attack(
    hostile: tuple[Viewer, tuple[str, ...]], context: NewContext
) -> None:
    viewer, _ = hostile
    page = context(base_url=viewer.url).new_page()
    watch = Watch(page, viewer.url)
    page.goto("/evals")
    page.locator("h2 a").first.click()
    page.wait_for_url("**/evals/*")
    harmless(page, watch)
    assert page.locator("main table a[href*='/runs/']").count() > 0
    page.goto("/evals")
    page.get_by_role("button", name="Compare A with B").click()
    page.wait_for_url("**/evals/compare?*")
    harmless(page, watch)


@pytest.mark.parametrize(
    "payload", [one.encode("utf-8", "replace").decode() for one in PAYLOADS], ids=range(len(PAYLOADS))
)
def test_addresses_execute_no_attack(
    hostile: tuple[Viewer, tuple[str, ...]], context: NewContext, payload: str
) -> None:
    viewer, _ = hostile
    page = context(base_url=viewer.url).new_page()
    asked = quote(payload, safe="")
    for path in (
        f"/?q={asked}&code={asked}&agent={asked}&model={asked}&tag={asked}&sort={asked}&after={asked}&step={asked}",
        f"/runs/{asked}",
        f"/evals/{asked}",
        f"/evals/compare?a={asked}&b={asked}&what={asked}&show={asked}",
        f"/failures?by={asked}",
        f"/{asked}",
    ):
        watch = Watch(page, viewer.url)
        answer = page.goto(path)
        assert answer is not None
        assert answer.status < 500
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        harmless(page, watch, refused=True)


def test_data_responses_are_not_rendered_as_pages(
    hostile: tuple[Viewer, tuple[str, ...]], context: NewContext
) -> None:
    viewer, ids = hostile
    request = context(base_url=viewer.url).request
    base = f"/runs/{quote(ids[0], safe='')}"
    for path in (
        f"{base}/raw.json",
        f"{base}/export.json",
        f"{base}/export.atif",
        "/api/failures",
        "/api/evals",
    ):
        answer = request.get(path)
        assert answer.status == 200, path
        assert answer.headers["content-type"].startswith("application/json"), path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert request.get(f"{base}/export.html").headers["content-disposition"].startswith("attachment")
