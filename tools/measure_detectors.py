"""Measure the built-in detectors on labelled runs; write cards and table of docs/detector-measurements.md.

    python tools/measure_detectors.py NAME=PATH[,PATH...] ...

Each argument names a data set and its files or folders. A run counts as failed or passed by its label; a run
with a labelled root cause failed. Writes agentguard/detect/cards.json and the table between the markers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from agentguard.detect import detect
from agentguard.detect.cards import (
    CARDS_FILE,
    DECIDING_PROBABILITIES,
    DetectorCard,
    DetectorMeasurement,
    load_cards,
)
from agentguard.detect.rules import BUILTIN_DETECTORS
from agentguard.evals.statistics import wilson_interval
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Record

DOCS_PAGE = Path(__file__).resolve().parents[1] / "docs" / "detector-measurements.md"
START, END = "<!-- cards: start -->\n", "<!-- cards: end -->\n"


def measure_dataset(name: str, records: Sequence[Record]) -> dict[str, DetectorMeasurement]:
    """Measure all built-in detectors on the labelled runs of a data set."""
    specs = dict.fromkeys(BUILTIN_DETECTORS, True)
    counts = {detector: [0, 0, 0, 0] for detector in BUILTIN_DETECTORS}
    alarms = {
        (detector, has_failed): [0] * len(DECIDING_PROBABILITIES)
        for detector in BUILTIN_DETECTORS
        for has_failed in (True, False)
    }
    failed = passed = 0
    for record in records:
        has_failed = has_run_failed(record)
        if has_failed is None:
            continue
        failed, passed = failed + has_failed, passed + (not has_failed)
        cause = record.annotation.root_cause
        steps_by_detector: dict[str, set[int]] = {}
        highest: dict[str, float] = {}
        for finding in detect(record.trajectory, specs).findings:
            steps_by_detector.setdefault(finding.detector, set()).add(finding.step)
            highest[finding.detector] = max(highest.get(finding.detector, 0.0), finding.probability)
        for detector, probability in highest.items():
            for rank, least in enumerate(DECIDING_PROBABILITIES):
                alarms[detector, has_failed][rank] += probability >= least
        for detector, steps in steps_by_detector.items():
            row = counts[detector]
            row[0 if has_failed else 1] += 1
            if has_failed and cause is not None and cause.step is not None:
                row[2] += cause.step in steps
                row[3] += 1
    return {
        detector: DetectorMeasurement(
            dataset=name,
            failed=failed,
            passed=passed,
            failed_alarms=row[0],
            passed_alarms=row[1],
            failed_by_probability=tuple(alarms[detector, True]),
            passed_by_probability=tuple(alarms[detector, False]),
            located=row[2],
            root_causes=row[3],
        )
        for detector, row in counts.items()
    }


def has_run_failed(record: Record) -> bool | None:
    """Return the label of a run; None if it has none."""
    annotation = record.annotation
    if annotation.failed is not None:
        return annotation.failed
    return True if annotation.root_cause is not None else None


def render_cards(cards: Iterable[DetectorCard]) -> str:
    """Render the table of the documentation: a row for each detector and data set with a finding."""
    rows = [
        "| detector | data set | recall: failed runs | false alarms: passed runs | precision | root cause |",
        "|---|---|---|---|---|---|",
    ]
    for card in cards:
        least = card.least_deciding_probability
        mark = " (does not decide alone)" if least is None else f" (decides from {least:g})"
        measured = [one for one in card.measurements if one.failed_alarms + one.passed_alarms]
        if not measured:
            rows.append(f"| {card.detector}{mark} | none | – | – | – | – |")
        for one in measured:
            alarms = one.failed_alarms + one.passed_alarms
            precision = _format_share(one.failed_alarms, alarms) if one.passed and one.failed else "–"
            located = f"{one.located} of {one.root_causes}" if one.root_causes else "–"
            rows.append(
                f"| {card.detector}{mark} | {one.dataset} | {_format_share(one.failed_alarms, one.failed)} "
                f"| {_format_share(one.passed_alarms, one.passed)} | {precision} | {located} |"
            )
    return "\n".join(rows) + "\n"


def _format_share(count: int, total: int) -> str:
    if not total:
        return "–"
    low, high = wilson_interval(count / total, total)
    return f"{count}/{total} ({low:.2f} – {high:.2f})"


def main(arguments: Sequence[str]) -> int:
    """Measure the data sets, then write the cards and the documentation."""
    sources = [argument.partition("=") for argument in arguments]
    if not sources or not all(name and paths for name, _, paths in sources):
        print(__doc__, file=sys.stderr)
        return 2
    measured = [
        measure_dataset(name, [record for path in paths.split(",") for record in load_records(path)])
        for name, _, paths in sources
    ]
    cards = {d: [asdict(dataset[d]) for dataset in measured] for d in sorted(BUILTIN_DETECTORS)}
    CARDS_FILE.write_bytes(orjson.dumps(cards, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    load_cards.cache_clear()
    page = DOCS_PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(START)
    tail = rest.partition(END)[2]
    table = render_cards(load_cards().values())
    DOCS_PAGE.write_text(f"{head}{START}{table}{END}{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
