"""Second pass of a batch job: comparison of each run with the other runs of its agent.

The first pass stores the signals of each run, so the second one reads only the output. It takes the rows in
the order of the input, so the verdicts are those of `agentguard.localize.run_comparison.compare_runs`.

A revised row contains its former values in ``single_run``. So a repeated comparison starts with them, and a
kill between two parts needs no repair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from agentguard.batch.operation import PartRevision
from agentguard.batch.output_folder import BatchOutput
from agentguard.localize.base import Diagnosis, Hypothesis, OutcomeBasis
from agentguard.localize.run_comparison import MAX_COMPARED_RUNS, RunComparator, list_comparable_runs
from agentguard.trajectory.grouping import AgentTraits
from agentguard.verdict import Verdict

VerdictRow = dict[str, Any]

_CAUSE: Final[VerdictRow] = {
    **dict.fromkeys(("step", "agent", "tool", "reason", "correction")),
    "codes": [],
    "evidence": [],
}
_REVISED_COLUMNS: Final = ("verdict", "probability", "basis", "notes", *_CAUSE)


def compare_parts(
    output: BatchOutput, slots: Iterable[str], comparator: RunComparator
) -> Iterator[PartRevision]:
    """Compare the rows of an output folder, and replace the parts that change.

    Args:
        output: the folder.
        slots: identities of the chunks in the order of the input; a chunk without a part is omitted.
        comparator: comparator of the runs of an agent.

    Yields:
        The revision of each changed part.
    """
    parts: deque[tuple[str, list[VerdictRow]]] = deque()

    def iter_rows() -> Iterator[VerdictRow]:
        for slot in slots:
            rows = output.read_rows(slot)
            if rows:
                parts.append((slot, rows))
                yield from map(_restore_row, rows)

    compared: list[VerdictRow] = []
    for row in compare_rows(iter_rows(), comparator):
        compared.append(row)
        slot, former = parts[0]
        if len(compared) == len(former):
            parts.popleft()
            if compared != former:
                output.replace_rows(slot, compared)
                yield PartRevision(slot, former, compared)
            compared = []


def compare_rows(rows: Iterable[VerdictRow], comparator: RunComparator) -> Iterator[VerdictRow]:
    """Yield rows of single runs in their order, with the verdicts of the comparison."""
    batch: list[VerdictRow] = []
    runs = 0
    for row in rows:
        batch.append(row)
        runs += row["run_id"] is not None
        if runs == MAX_COMPARED_RUNS:
            yield from _compare_batch(batch, comparator)
            batch, runs = [], 0
    yield from _compare_batch(batch, comparator)


def _compare_batch(batch: Sequence[VerdictRow], comparator: RunComparator) -> list[VerdictRow]:
    import numpy as np

    compared = list(batch)
    for places in list_comparable_runs([_describe_agent(row) for row in batch]):
        members = [batch[place] for place in places]
        signals = np.array([row["signals"] for row in members])
        revised = comparator.compare([_build_diagnosis(row) for row in members], signals)
        for place, row, diagnosis in zip(places, members, revised, strict=True):
            if diagnosis.basis is OutcomeBasis.OTHER_RUNS:
                compared[place] = _revise_row(row, diagnosis)
    return compared


def _describe_agent(row: VerdictRow) -> AgentTraits | None:
    if not row["signals"]:
        return None
    return AgentTraits(row["format"], row["model"] or "", frozenset(row["tools"]))


def _build_diagnosis(row: VerdictRow) -> Diagnosis:
    """Return the part of a diagnosis that a comparison uses."""
    has_cause = row["step"] is not None
    return Diagnosis(
        trajectory_id=row["run_id"],
        method=row["method"],
        verdict=Verdict(row["verdict"]),
        probability=row["probability"],
        basis=OutcomeBasis(row["basis"]),
        hypotheses=(Hypothesis(step=row["step"], agent=row["agent"]),) if has_cause else (),
        notes=tuple(row["notes"]),
    )


def _revise_row(row: VerdictRow, diagnosis: Diagnosis) -> VerdictRow:
    revised = {
        "verdict": str(diagnosis.verdict),
        "probability": diagnosis.probability,
        "basis": str(diagnosis.basis),
        "notes": list(diagnosis.notes),
        "single_run": orjson.dumps({name: row[name] for name in _REVISED_COLUMNS}).decode(),
    }
    return row | revised | ({} if diagnosis.hypotheses else _CAUSE)


def _restore_row(row: VerdictRow) -> VerdictRow:
    """Return a row as the first pass has written it."""
    if row["single_run"] is None:
        return row
    former: VerdictRow = orjson.loads(row["single_run"])
    return row | former | {"single_run": None}
