from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentguard.detect.cards import DetectorCard, DetectorMeasurement, load_cards
from agentguard.detect.rules import BUILTIN_DETECTORS
from agentguard.trajectory.model import Annotation, Record
from tests.unit.detect.builders import call, run, said
from tools.measure_detectors import END, START, measure_dataset, render_cards

DOCS = Path(__file__).resolve().parents[3] / "docs" / "detector-measurements.md"
ROW = DetectorMeasurement(
    dataset="x",
    failed=40,
    passed=40,
    failed_alarms=19,
    passed_alarms=9,
    failed_by_probability=(9, 5),
    passed_by_probability=(2, 2),
    located=0,
    root_causes=0,
)


def test_every_builtin_detector_has_a_card_for_the_same_data_sets() -> None:
    cards = load_cards()
    assert set(cards) == set(BUILTIN_DETECTORS)
    datasets = {tuple(one.dataset for one in card.measurements) for card in cards.values()}
    assert len(datasets) == 1
    assert len(datasets.pop()) >= 8


def test_documentation_shows_the_cards() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert page.partition(START)[2].partition(END)[0] == render_cards(load_cards().values())


def test_detector_with_many_false_alarms_does_not_decide_alone() -> None:
    assert DetectorCard(detector="d", measurements=(ROW,)).least_deciding_probability == 0.7
    certain = replace(ROW, passed_by_probability=(3, 2))
    assert DetectorCard(detector="d", measurements=(certain,)).least_deciding_probability == 0.9
    for row in (replace(ROW, passed_by_probability=(3, 3)), replace(ROW, failed_by_probability=(0, 0))):
        assert not DetectorCard(detector="d", measurements=(row,)).decides_alone
    small = replace(ROW, passed=5, passed_by_probability=(5, 5))
    assert DetectorCard(detector="d", measurements=(ROW, small)).decides_alone


def test_measurement_counts_runs_by_their_label() -> None:
    bad = run(call("look", {}, "Error: no door"), said("I go on."))
    good = run(call("look", {}, "a door"), said("There is a door."))
    records = [
        Record(trajectory=bad, annotation=Annotation(failed=True)),
        Record(trajectory=good, annotation=Annotation(failed=False)),
        Record(trajectory=good),
    ]
    row = measure_dataset("own", records)["tool_error"]
    assert (row.failed, row.passed, row.failed_alarms, row.passed_alarms) == (1, 1, 1, 0)
    assert (row.failed_by_probability, row.passed_by_probability) == ((0, 0), (0, 0))
