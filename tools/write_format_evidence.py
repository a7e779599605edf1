"""Write docs/format-evidence.md: counts of the importers, with independent counts.

python -m tools.write_format_evidence

The development data must be beside the checkout, or in the folder that AGENTGUARD_DATA names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from agentguard.trajectory.formats.reader import load_records
from tests.data import shared_data
from tests.integration import test_coding_agent_counts, test_format_counts
from tests.support.format_counts import FormatCounts, count_steps

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "format-evidence.md"
SAMPLES = test_format_counts.SAMPLES
HEADER = """# Counts of the formats

`python -m tools.write_format_evidence` writes this page: it reads every file with its importer and counts
runs, steps, turns of agents, tool calls, results, and results with an error flag.

For the first table, a second program without the importers counts the same files, and the tests fail if a
number differs ([formats.md](formats.md) describes the formats). The column `count` has the numbers of that
program: runs / turns / calls / results / error flags. Its files are recorded runs, or a library of the format
wrote them; those of `tau2_bench` are hand-written in the shape of its data model.

"""
COLUMNS = "| format | source | files | runs | steps | turns | calls | results | error flags |"
SAMPLE_HEADER = """
Hand-written samples of the tests are below; they show what is tested, but not how recorded files are read.
The last column counts parts and events that are not read.

"""


class Imported(NamedTuple):
    """Totals of a file or folder that the importers read; ``formats`` has their names."""

    formats: str
    files: int
    steps: int
    unknown_parts: int
    counts: FormatCounts


def import_source(path: Path) -> Imported:
    """Return the totals that the importers read; raises the error of an unreadable record."""
    records = load_records(path)
    runs = [record.trajectory for record in records]
    return Imported(
        formats=", ".join(sorted({run.format for run in runs})),
        files=len({record.file for record in records}),
        steps=sum(len(run.steps) for run in runs),
        unknown_parts=sum(sum(run.unknown_parts.values()) for run in runs),
        counts=count_steps((run.steps for run in runs), runs=len(runs)),
    )


def build_count_rows() -> Iterator[str]:
    """Yield the rows with an independent count; skips no source."""
    for name, count in (test_format_counts.COUNTS | test_coding_agent_counts.COUNTS).items():
        yield _build_count_row(shared_data(name), name, count)
    yield from build_sample_count_rows()


def build_sample_count_rows() -> Iterator[str]:
    """Yield the rows of the samples with an independent count."""
    for name, count in test_format_counts.SAMPLE_COUNTS.items():
        yield _build_count_row(SAMPLES / name, f"sample {name}", count)


def build_sample_rows() -> Iterator[str]:
    """Yield the rows of the other samples."""
    for path in sorted(SAMPLES.iterdir()):
        if path.name not in test_format_counts.SAMPLE_COUNTS and not path.name.startswith("."):
            found = import_source(path)
            yield f"{_build_row(found, path.name)} {found.unknown_parts} |"


def build_page() -> str:
    """Return the page."""
    rule = "|---" * 10 + "|"
    counted = "\n".join(sorted(build_count_rows()))
    samples = "\n".join(build_sample_rows())
    return (
        f"{HEADER}{COLUMNS} count |\n{rule}\n{counted}\n"
        f"{SAMPLE_HEADER}{COLUMNS} unknown parts |\n{rule}\n{samples}\n"
    )


def _build_count_row(path: Path, source: str, count: Callable[[Path], FormatCounts]) -> str:
    counted = count(path)
    numbers = (counted.runs, counted.turns, counted.calls, counted.results, counted.errors)
    return f"{_build_row(import_source(path), source)} {' / '.join(map(str, numbers))} |"


def _build_row(found: Imported, source: str) -> str:
    counts = found.counts
    numbers = (
        found.files,
        counts.runs,
        found.steps,
        counts.turns,
        counts.calls,
        counts.results,
        counts.errors,
    )
    return f"| {found.formats} | `{source}` | {' | '.join(map(str, numbers))} |"


if __name__ == "__main__":
    PAGE.write_text(build_page(), encoding="utf-8")
