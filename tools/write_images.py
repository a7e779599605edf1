"""Write the viewer's images of the documentation: ``python -m tools.write_images [NAME …]``.

The images show a store with invented runs of a travel desk of four agents, and the guarded run of the tests.
The default guard has diagnosed the runs. The command needs Chromium and the development dependencies.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.store.store import Store
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory, Usage
from tests.chromium import FLAGS, program
from tests.viewer_runs import RECOVERED, recovered
from tests.viewer_server import serving

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
_DAY_S = 86_400
_END_S = 1_795_500_000.0  # 2026-11-24, so that an image changes only if a page changes
_CITIES = ("Lisbon", "Porto", "Madrid", "Vienna", "Prague", "Oslo", "Ghent", "Turin", "Lyon", "Graz")
_TOOLS = tuple(
    ToolSpec(name=name)
    for name in ("search_flights", "search_hotels", "read_policy", "hold_price", "book_trip", "send_mail")
)


class TravelRun:
    """Builder of one run of the travel desk.

    Args:
        id: ID of the run.
        city: destination.
        began_at: begin of the run in epoch seconds.
    """

    def __init__(self, id: str, city: str, began_at: float) -> None:
        self._id, self._city, self._time = id, city, began_at
        self._task = (
            f"Book a trip to {city} for two people, at most 900 euros. Mail the plan to ana@example.org."
        )
        self._steps: list[Step] = []
        self._add(Source.USER, "user", self._task)

    def say(self, agent: str, text: str) -> None:
        """Add a message of an agent."""
        self._add(Source.AGENT, agent, text)

    def call(self, agent: str, tool: str, result: str, *, is_error: bool = False, **arguments: Any) -> None:
        """Add a call of a tool with its result."""
        call = ToolCall(id=f"c{len(self._steps)}", name=tool, arguments=arguments)
        seen = Observation(content=result, call_id=call.id, tool=tool, is_error=is_error or None)
        self._add(Source.AGENT, agent, "", tool_calls=(call,), observations=(seen,))

    def build(self) -> Trajectory:
        """Return the run."""
        return Trajectory(
            id=self._id, format="event_log", task=self._task, steps=tuple(self._steps), tools=_TOOLS
        )

    def plan(self) -> None:
        """Add the beginning that all runs have."""
        self.say(
            "planner", f"Plan: find a flight and a hotel in {self._city}, check the policy, book, mail Ana."
        )
        self.call("planner", "read_policy", "Trips up to 900 euros need no approval.", topic="budget")
        self.call(
            "researcher", "search_flights", '[{"flight": "TP 571", "euros": 312}]', city=self._city, people=2
        )

    def finish(self) -> None:
        """Add the end that all good runs have."""
        self.call("researcher", "search_hotels", '[{"hotel": "Central", "euros": 420}]', city=self._city)
        self.call("booker", "hold_price", '{"held": "H-77", "euros": 732}', flight="TP 571", hotel="Central")
        self.call("booker", "book_trip", '{"booking": "B-4711", "euros": 732}', hold="H-77")
        self.call("writer", "send_mail", "sent", to="ana@example.org", text="Booking B-4711 costs 732 euros.")
        self.say("writer", "The trip is booked as B-4711 for 732 euros, and Ana has the plan.")

    def _add(self, source: Source, agent: str, content: str, **parts: Any) -> None:
        began_at = self._time
        self._time += 3 + len(self._steps) % 4
        usage = Usage(prompt_tokens=900 + 240 * len(self._steps), completion_tokens=60, cost_usd=0.004)
        if source is Source.AGENT:
            parts |= {"usage": usage, "model": "example-large"}
        step = Step(
            index=len(self._steps),
            source=source,
            agent=agent,
            content=content,
            started_at=began_at,
            ended_at=self._time,
            **parts,
        )
        self._steps.append(step)


def loop_on_hotels(run: TravelRun) -> None:
    """Repeat a search without a result."""
    run.plan()
    for _ in range(7):
        run.call("researcher", "search_hotels", "[]", city="Centre", stars=7)
    run.say("writer", "I could not find a hotel.")


def repeat_failed_hold(run: TravelRun) -> None:
    """Repeat a call that fails for a lasting reason."""
    run.plan()
    for _ in range(5):
        run.call(
            "booker",
            "hold_price",
            "Error: no permission",
            is_error=True,
            flight="TP 571",
            hotel="?",
        )
    run.say("writer", "The booking was not possible.")


def invent_tool(run: TravelRun) -> None:
    """Call a tool that does not exist."""
    run.plan()
    for _ in range(3):
        run.call("planner", "approve_budget", "Error: unknown tool", is_error=True, euros=1_400)
    run.say("writer", "The budget could not be approved.")


def invent_price(run: TravelRun) -> None:
    """Report a booking that no tool has made."""
    run.plan()
    run.call("researcher", "search_hotels", "Error: service not available", is_error=True, city="Centre")
    run.call("writer", "send_mail", "sent", to="ana@example.org", text="Booking B-9021 costs 648 euros.")
    run.say("writer", "I booked the hotel Miramar as B-9021 for 648 euros.")


def succeed(run: TravelRun) -> None:
    """Book the trip."""
    run.plan()
    run.finish()


_KINDS = (succeed, loop_on_hotels, repeat_failed_hold, invent_tool, invent_price)
_WEIGHTS_BY_WEEK = (
    (8, 1, 0, 1, 1), (8, 2, 0, 1, 1), (7, 1, 3, 1, 0), (6, 1, 5, 0, 1), (8, 2, 2, 0, 2), (9, 1, 0, 1, 1),
)  # fmt: skip


def iter_runs() -> Iterator[tuple[Trajectory, Callable[[TravelRun], None]]]:
    """Yield 72 runs of six weeks, each with its kind."""
    choice = random.Random(7)
    for week, weights in enumerate(_WEIGHTS_BY_WEEK):
        began_at = _END_S - (len(_WEIGHTS_BY_WEEK) - week) * 7 * _DAY_S
        for number in range(12):
            city = choice.choice(_CITIES)
            at = began_at + number * 0.55 * _DAY_S
            run = TravelRun(f"trip-{week + 1}{number:02d}-{city.lower()}", city, at)
            (kind,) = choice.choices(_KINDS, weights)
            kind(run)
            yield run.build(), kind


def fill(path: Path) -> None:
    """Write the runs to a store, and diagnose them with the command."""
    with Store.open(path) as store:
        for run, _ in iter_runs():
            store.write_run(run)
        recovered(store)
        store.flush(60)
    result = CliRunner().invoke(build_app(), ["runs", "diagnose", "--store", str(path)])
    if result.exit_code:
        raise SystemExit(f"the runs could not be diagnosed: {result.output}")


def open_list(page: Page) -> None:
    """Open the list of runs with the likeliest failures first."""
    page.goto("/")
    page.get_by_role("link", name="Likeliest failures first").click()


def open_failures(page: Page) -> None:
    """Open the page of failures."""
    page.goto("/failures")
    page.set_viewport_size({"width": 1280, "height": 740})


def open_graph(page: Page) -> None:
    """Open the graph of a failed run."""
    page.goto(f"/runs/{_find_run(repeat_failed_hold)}?show=graph")


def open_diff(page: Page) -> None:
    """Open the comparison of a failed run with a good one."""
    failed = _find_run(repeat_failed_hold)
    good = _find_run(succeed, city=failed.rpartition("-")[2])
    page.goto(f"/diff?a={failed}&b={good}")


def _find_run(kind: Callable[[TravelRun], None], city: str = "") -> str:
    """Return the ID of the first run of a kind, to a city if one is named."""
    return next(run.id for run, found in iter_runs() if found is kind and run.id.endswith(city))


def open_run(page: Page) -> None:
    """Open a failed run."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"/runs/{_find_run(repeat_failed_hold)}")


def open_dark_run(page: Page) -> None:
    """Open a failed run on a narrow, dark screen."""
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"/runs/{_find_run(repeat_failed_hold)}")


def open_branches(page: Page) -> None:
    """Open an abandoned branch beside its continuation."""
    page.set_viewport_size({"width": 1280, "height": 2_400})  # so that the timeline covers nothing
    page.goto(f"/runs/{RECOVERED}?show=branches")
    page.locator(".parting").last.evaluate("branch => { branch.open = true; }")


_PAGES = {
    "runs": open_list,
    "run": open_run,
    "run-dark-400": open_dark_run,
    "branches": open_branches,
    "failures": open_failures,
    "graph": open_graph,
    "diff": open_diff,
}
_ELEMENTS = {"graph": "section[aria-labelledby=graph]", "branches": ".parting:last-of-type .sides"}
"""Parts of pages that an image shows; the other images show the viewport."""


def main() -> None:
    """Write the named images, by default all."""
    names = sys.argv[1:] or list(_PAGES)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = Path(folder) / "store.db"
        fill(store)
        with serving(store) as viewer:
            chromium = playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
            for name in names:
                page = chromium.new_page(base_url=viewer.url, viewport={"width": 1280, "height": 640})
                _PAGES[name](page)
                page.wait_for_load_state("networkidle")
                shown = page.locator(_ELEMENTS[name]) if name in _ELEMENTS else page
                shown.screenshot(path=IMAGES / f"{name}.png")
                page.close()
            chromium.close()


if __name__ == "__main__":
    main()
