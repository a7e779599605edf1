"""Load time of the page of a run of 1,000 steps, compared with Inspect View's page of the same run.

Run: .venv/bin/python benchmarks/viewer.py [--rounds N] [--steps N]      (prints JSON)
Needs Chromium, and creates .venv-inspect with `inspect-ai` if it is missing. Two processes serve both viewers
on loopback. The benchmark opens them in turns in a fresh browser context (empty cache), at the address of the
run.

A page is ready when the run's first turn is visible and the page responds: no task of the main thread exceeds
50 ms for a quarter of a second (the usual bound of a long task, W3C Long Tasks API). The time since
navigation
is that of the end of the last long task, or of the first turn, whichever is later. The weight is the number
of
bytes from the server: assets (styles, scripts, fonts, images), and all of it. A page with a run without steps
shows our weight without the data.
"""

import argparse
import json
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Request, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from agentguard.guard import Guard  # noqa: E402
from agentguard.localize.serialization import build_diagnosis_rows  # noqa: E402
from agentguard.store import Store  # noqa: E402
from agentguard.trajectory.serialization import encode_step  # noqa: E402
from tests.chromium import FLAGS  # noqa: E402
from tests.viewer_runs import long_run  # noqa: E402
from tests.viewer_server import serving  # noqa: E402

VENV = ROOT / ".venv-inspect"
QUIET_MS = 250
_TEXT = "I look at order 10003"
_WATCH = """
window.__long = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.__long = Math.max(window.__long, one.startTime + one.duration);
}).observe({ type: "longtask", buffered: true });
window.__seen = 0;
const look = () => {
  if (!document.body?.innerText.includes(%r)) return requestAnimationFrame(look);
  requestAnimationFrame(() => requestAnimationFrame(() => { window.__seen = performance.now(); }));
};
requestAnimationFrame(look);
"""
_READY = """(quiet) => window.__seen && performance.now() - Math.max(window.__seen, window.__long) > quiet
  ? Math.max(window.__seen, window.__long) : 0"""
ASSETS = {"stylesheet", "script", "font", "image"}


@dataclass
class Opened:
    """Measurements of opening a page once."""

    ready_ms: float
    first_turn_ms: float
    assets: int
    all: int
    elements: int


@dataclass
class Side:
    """One viewer and its measurements."""

    name: str
    url: str
    opened: list[Opened] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        middle: Callable[[str], float] = lambda name: statistics.median(  # noqa: E731
            getattr(one, name) for one in self.opened
        )
        return {
            "viewer": self.name,
            "ready_ms": round(middle("ready_ms"), 1),
            "ready_ms_each": [round(one.ready_ms, 1) for one in self.opened],
            "first_turn_ms": round(middle("first_turn_ms"), 1),
            "assets_kb": round(middle("assets") / 1024, 1),
            "sent_kb": round(middle("all") / 1024, 1),
            "elements": int(middle("elements")),
        }


def opened(browser: Browser, url: str) -> Opened:
    """Open a page in a new browser context and wait until it is ready."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        done: list[Request] = []
        page.on("requestfinished", lambda one: done.append(one))
        page.add_init_script(_WATCH % _TEXT)
        page.goto(url, wait_until="commit")
        ready = page.wait_for_function(_READY, arg=QUIET_MS, timeout=120_000, polling=25).json_value()
        sizes = [(one.resource_type, one.sizes()["responseBodySize"]) for one in done]
        return Opened(
            ready_ms=float(ready),
            first_turn_ms=float(page.evaluate("window.__seen")),
            assets=sum(size for kind, size in sizes if kind in ASSETS),
            all=sum(size for _, size in sizes),
            elements=int(page.evaluate("document.querySelectorAll('*').length")),
        )
    finally:
        context.close()


def without_data(url: str) -> int:
    """Return the bytes of our page for a run without steps, with its assets."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        page = browser.new_page()
        done: list[Request] = []
        page.on("requestfinished", lambda one: done.append(one))
        page.goto(url)
        page.wait_for_load_state("load")
        found = sum(one.sizes()["responseBodySize"] for one in done)
        browser.close()
    return found


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise SystemExit("Chromium is not installed: apt-get install -y chromium")
    return found


def inspect_python() -> Path:
    """Return the Python of Inspect's environment; create it if it is missing."""
    python = VENV / "bin" / "python"
    if not (VENV / "bin" / "inspect").exists():
        print(f"installing inspect-ai into {VENV} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "inspect-ai"], check=True)
    return python


@contextmanager
def inspect_view(folder: Path) -> Iterator[str]:
    """Start `inspect view` over the logs of a folder."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    process = subprocess.Popen(
        [str(VENV / "bin" / "inspect"), "view", "--log-dir", str(folder), "--port", str(port)],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


def prepared(folder: Path, steps: int) -> Path:
    """Write the same run with its findings to our store and as an Inspect log; return the store."""
    run = long_run(steps)
    empty = long_run(1)
    with Store.open(folder / "store.db") as store:
        for one in (run, empty):
            store.write_run(one)
            store.write(*build_diagnosis_rows(Guard(localizer="first_finding").diagnose(one)))
        store.flush(60)
    logs = folder / "logs"
    logs.mkdir()
    (folder / "run.json").write_text(
        json.dumps({"task": run.task, "steps": [encode_step(one) for one in run.steps]}), encoding="utf-8"
    )
    script = Path(__file__).with_name("viewer_inspect.py")
    subprocess.run(
        [inspect_python(), script, folder / "run.json", logs], check=True, stdout=subprocess.DEVNULL
    )
    return folder / "store.db"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as held:
        folder = Path(held)
        path = prepared(folder, asked.steps)
        with serving(path) as viewer, inspect_view(folder / "logs") as inspect:
            sample = f"{inspect}/#/logs/run.eval/samples/sample/1/1"
            sides = (
                Side("agentguard", f"{viewer.url}/runs/long-{asked.steps}"),
                Side("inspect messages", f"{sample}/messages"),
                Side("inspect transcript", f"{sample}/transcript"),
            )
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
                for number in range(asked.rounds + 1):
                    for side in sides:
                        found = opened(browser, side.url)
                        if number:  # the first round warms the servers
                            side.opened.append(found)
                browser.close()
            bare = without_data(f"{viewer.url}/runs/long-1")
    ours, *theirs = (side.to_dict() for side in sides)
    ratios = [
        statistics.median(a.ready_ms / b.ready_ms for a, b in zip(sides[0].opened, side.opened, strict=True))
        for side in sides[1:]
    ]
    print(
        json.dumps(
            {
                "steps": asked.steps,
                "rounds": asked.rounds,
                "machine": platform.platform(),
                "viewers": [ours, *theirs],
                "ratio_to_messages": round(ratios[0], 3),
                "ratio_to_transcript": round(ratios[1], 3),
                "page_without_data_kb": round(bare / 1024, 1),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
