"""axe-core finds no serious problem on any page, light or dark, wide or narrow."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.chromium import NewContext
from tests.e2e.viewer.test_walk import PAGES, SCREENS
from tests.viewer_server import Viewer

pytestmark = pytest.mark.slow

_GRAVE = {"serious", "critical"}


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", [*PAGES, "eval", "compare", "campaign", "issue", "batch"])
def test_axe_finds_no_serious_violation(
    viewer: Viewer, context: NewContext, name: str, scheme: str, width: int
) -> None:
    # The page's policy forbids foreign scripts, so only this test bypasses it for axe.
    page = context(
        base_url=viewer.url,
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
        bypass_csp=True,
    ).new_page()
    lists = {"campaign": "/campaigns", "issue": "/issues", "batch": "/batches"}
    page.goto(lists.get(name, PAGES.get(name, "/evals")))
    if name == "campaign":
        page.get_by_role("link", name="booking").click()
    elif name in lists:
        page.locator("tbody a").first.click()
    elif name == "eval":
        page.locator("h2 a").first.click()
    elif name == "compare":
        page.get_by_role("button", name="Compare A with B").click()
    page.wait_for_load_state()
    found = Axe().run(page).response["violations"]
    grave = [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in _GRAVE
    ]
    assert not grave, "\n".join(grave)
