from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.evaluate import EvaluationPlan, compare
from agentguard.evals.report import render_report, write_report
from agentguard.evals.report.breakdown import measure_by_length, measure_by_position, summarize_runs
from agentguard.html_report.plots import IntervalRow, render_bars, render_curve, render_intervals
from tests.unit.evals.cases import Remembers, Says, record, records

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
PLAN = EvaluationPlan(cv="question", folds=3, repeats=2)


class Page(HTMLParser):
    """Collects elements and attributes, and checks that tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render_report(compare(records(), [Says(1, 2), Remembers()], plan=PLAN), plan=PLAN))


def test_report_is_self_contained_without_scripts(page: Page) -> None:
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    for _, attributes in page.seen:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "href", "xlink:href")
        ]
    policy = next(a["content"] for t, a in page.seen if a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy


def test_every_plot_has_a_description(page: Page) -> None:
    drawings = [a for tag, a in page.seen if tag == "svg"]
    assert len(drawings) >= 6
    ids = [a["id"] for _, a in page.seen if "id" in a]
    assert len(ids) == len(set(ids))
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert set((drawing["aria-labelledby"] or "").split()) <= set(ids)


def test_report_contains_the_figures(page: Page) -> None:
    words = " ".join(page.words)
    assert "66.7" in words
    assert "39.1 to 86.2" in words
    assert "two_line" in words
    assert "2 × 3 folds split by question" in words
    assert words.count("r11") == 2


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    held = [record(HOSTILE), record("b"), record("c", step=2), record("d")]
    data = Dataset(name=HOSTILE, records=tuple(held), parts=(HOSTILE, HOSTILE, "other", "other"))
    path = tmp_path / "new" / "report.html"
    write_report(
        path,
        compare(data, [Says(1, name=HOSTILE)], plan=EvaluationPlan(folds=2, repeats=1)),
        plan=EvaluationPlan(),
    )
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert not {tag for tag, _ in page.seen} & {"script", "img"}
    assert HOSTILE in "".join(page.words)


def test_outcomes_have_their_section() -> None:
    held = [record(f"r{i}", step=1 if i % 2 else None, failed=bool(i % 2)) for i in range(8)]
    text = render_report(
        compare(held, [Says(1)], plan=EvaluationPlan(folds=2, repeats=1)),
        plan=EvaluationPlan(folds=2, repeats=1),
    )
    assert "Failed or passed" in text
    assert "4 of 8 runs failed" in text


def test_published_results_are_shown_with_their_setting() -> None:
    data = Dataset(name="who_and_when", records=tuple(records()), parts=("Hand-Crafted",) * 12)
    text = render_report(compare(data, [Says(1)], plan=PLAN), plan=PLAN)
    assert "ReCast (Qwen3.5-27B)" in text
    assert "zero-shot" in text
    assert "not comparable with one that was not" in text


def test_marks_are_at_their_values() -> None:
    drawing = render_intervals(
        [IntervalRow(label="m", value=0.5, low=0.25, high=0.75)], title="t", description="d"
    )
    root = ET.fromstring(drawing)
    name = "{http://www.w3.org/2000/svg}"
    circle = root.find(f"{name}circle")
    whisker = next(line for line in root.iter(f"{name}line") if "whisker" in (line.get("class") or ""))
    assert circle is not None
    x = [float(circle.get("cx") or 0), float(whisker.get("x1") or 0), float(whisker.get("x2") or 0)]
    assert x[0] == pytest.approx((x[1] + x[2]) / 2)
    assert x[2] - x[1] == pytest.approx(440 / 2, abs=0.2)


def test_plots_stay_inside_their_frame() -> None:
    rows = [IntervalRow(label="x" * 90, value=v, low=0, high=1, kind="trained") for v in (0.0, 1.0)]
    result = compare(records(), [Says(1)], plan=PLAN)[0]
    for drawing in (
        render_intervals(rows, title="t", description="d"),
        render_bars(measure_by_position(result), title="t", description="d", x_name="x"),
        render_curve(
            [(0, 0), (1, 1)], title="t", description="d", names=("a", "b"), sizes=[1, 9], diagonal=True
        ),
    ):
        root = ET.fromstring(drawing)
        _, _, width, height = map(float, (root.get("viewBox") or "").split())
        for element in root.iter():
            for key, most in (
                ("x", width),
                ("y", height),
                ("x1", width),
                ("y2", height),
                ("cx", width),
                ("cy", height),
            ):
                if element.get(key) is not None:
                    assert -0.1 <= float(element.get(key) or 0) <= most + 0.1
        assert not re.search(r"x{40}", drawing.split("</desc>")[1].split("<title>")[0])


def test_breakdown_is_by_position_and_length() -> None:
    held = [record(f"a{i}", step=0, steps=3) for i in range(6)] + [
        record(f"b{i}", step=20, steps=30) for i in range(6)
    ]
    result = compare(held, [Says(0)], plan=EvaluationPlan(folds=2, repeats=1))[0]
    assert [(b.label, b.n, b.value) for b in measure_by_position(result)] == [
        ("0", 6, 1.0),
        ("16–23", 6, 0.0),
    ]
    assert [(b.label, b.n) for b in measure_by_length(result)] == [("3", 6), ("24–31", 6)]


def test_small_bins_are_merged() -> None:
    held = [record(f"a{i}", step=i, steps=12) for i in range(9)]
    result = compare(held, [Says(0)], plan=EvaluationPlan(folds=2, repeats=1))[0]
    assert [(b.label, b.n) for b in measure_by_position(result)] == [("0–5", 6), ("6+", 3)]


def test_runs_are_summarised_individually() -> None:
    result = compare(records(), [Remembers()], plan=PLAN)[0]
    rows = summarize_runs(result)
    assert len(rows) == 12
    assert rows[1].step == 1
    assert rows[1].right == 1.0
    assert rows[1].verdict == "failed"
