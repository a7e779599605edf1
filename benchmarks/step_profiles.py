"""Signal and cost of step profiles, and a check that they contain no words of the topic.

Run: .venv/bin/python benchmarks/step_profiles.py PATH [--nearest 10] [--json]

PATH holds annotated failures. The score of a candidate step is its mean similarity to the profiles of
root-cause
steps in other runs, without runs of the same question. Nothing is trained or tuned here. A tie counts in
part.

    percentile    place of the root cause among the candidates, 0 first, 1 last, 0.5 by chance
    top 1, top 3  share of the runs in which it comes first, or among the first three
    place         the same from the traits that describe only the position of a step: the prior
    centred       without the run's mean profile, and with the similarity to all profiles
    ms            processor time of `portray` beyond the table of features, for runs of 80 steps and more
    of the table  that as a share of the table's own time, which a busy machine disturbs less
    left over     words of schemata that are digits or name an agent or tool of their run: must be 0
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentguard.detect.base import Finding
from agentguard.detect.detection import detect
from agentguard.judge.embedded.features.table import build_step_table, clear_cache
from agentguard.schemata.distillation.distiller import EmbeddedDistiller
from agentguard.schemata.model import Profile
from agentguard.schemata.profiles.step_profile import VOCABULARY, profile_steps
from agentguard.schemata.vectors.base import vectorisers
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Record

Array = NDArray[np.float64]
Vectorise = Callable[[Sequence[Profile]], Array]
Seen = tuple[Record, tuple[Finding, ...], tuple[Profile, ...]]
LONG_RUN = 80
PLACE = ("place:", "run:")


def unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    result: Array = rows / np.where(lengths == 0, 1, lengths)
    return result


def by_traits(names: Sequence[str]) -> Vectorise:
    """Return the rows of the named traits."""
    return lambda many: np.array([[one.traits.get(name, 0.0) for name in names] for one in many])


def by_text(many: Sequence[Profile]) -> Array:
    return np.asarray(vectorisers().get("hashing")().encode([one.text for one in many]), dtype=np.float64)


def centred(inner: Vectorise) -> Vectorise:
    def rows(many: Sequence[Profile]) -> Array:
        made = inner(many)
        result: Array = made - made.mean(axis=0)
        return result

    return rows


def scored(seen: Sequence[Seen], vectorise: Vectorise, nearest: int | None) -> dict[str, float]:
    """Return the ranks of the root causes over runs of one kind."""
    rows = [unit(vectorise(portraits)) for _, _, portraits in seen]
    golds = [gold(one) for one in seen]
    groups = [normalize_group_key(record.annotation.group or record.trajectory.task) for record, _, _ in seen]
    places = []
    for mine, at, group in zip(rows, golds, groups, strict=True):
        others = [row[g] for row, g, other in zip(rows, golds, groups, strict=True) if other != group]
        alike = np.sort(mine @ np.array(others).T, axis=1)[:, ::-1][:, :nearest].mean(axis=1)
        better, equal = (alike > alike[at]).sum(), (alike == alike[at]).sum()
        places.append((int(better), int(equal), len(alike)))
    return {
        "percentile": statistics.mean((b + (e - 1) / 2) / (n - 1) if n > 1 else 0.5 for b, e, n in places),
        "top 1": statistics.mean(float(b < 1) / e for b, e, _ in places),
        "top 3": statistics.mean(min(1.0, max(0, 3 - b) / e) for b, e, _ in places),
        "chance": statistics.mean(1 / n for _, _, n in places),
    }


def gold(one: Seen) -> int:
    cause = one[0].annotation.root_cause
    return [portrait.step for portrait in one[2]].index(None if cause is None else cause.step)


def left_over(record: Record, findings: Sequence[Finding]) -> int:
    """Return digits and names that a schema contains beyond the closed vocabulary."""
    schema = EmbeddedDistiller().distill(record, findings)
    if schema is None:
        return 0
    free = [line for line in (*schema.signature, *schema.context) if line not in VOCABULARY]
    words = re.findall(r"\w+", " ".join((*free, schema.correction)).lower())
    run = record.trajectory
    names = {step.agent.lower() for step in run.steps} | {tool.name.lower() for tool in run.tools}
    return sum(word in names or any(c.isdigit() for c in word) for word in words)


def cost(seen: Sequence[Seen]) -> dict[str, float]:
    """Return the median processor time of `portray` with a cached table, and its ratio to the table."""
    times, shares = [], []
    for record, findings, _ in seen:
        if len(record.trajectory.steps) >= LONG_RUN:
            clear_cache()
            start = time.process_time()
            build_step_table(record.trajectory)
            between = time.process_time()
            profile_steps(record.trajectory, findings)
            end = time.process_time()
            times.append((end - between) * 1e3)
            shares.append((end - between) / (between - start))
    return {"ms": statistics.median(times), "of the table": statistics.median(shares)} if times else {}


def measured(seen: Sequence[Seen], nearest: int) -> dict[str, Any]:
    names = sorted({name for _, _, portraits in seen for one in portraits for name in one.traits})
    ways: dict[str, tuple[Vectorise, int | None]] = {
        "place": (by_traits([name for name in names if name.startswith(PLACE)]), None),
        "traits": (by_traits(names), nearest),
        "traits without place": (
            by_traits([name for name in names if not name.startswith(PLACE)]),
            nearest,
        ),
        "traits centred": (centred(by_traits(names)), None),
        "text": (by_text, nearest),
        "text centred": (centred(by_text), None),
    }
    out: dict[str, Any] = {}
    for kind, steered in (("group chats", False), ("steered", True)):
        part = [one for one in seen if build_step_table(one[0].trajectory).layout.has_orchestrator is steered]
        if len(part) > 1:
            out[kind] = {"runs": len(part)} | {way: scored(part, *how) for way, how in ways.items()}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--nearest", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    every: list[Seen] = []
    for record in load_records(options.path):
        findings = detect(record.trajectory).findings
        every.append((record, findings, profile_steps(record.trajectory, findings)))
    causes = [record.annotation.root_cause for record, _, _ in every]
    seen = [
        one
        for one, cause in zip(every, causes, strict=True)
        if cause is not None and cause.step in [portrait.step for portrait in one[2]]
    ]
    result = measured(seen, options.nearest) | {
        "runs": len(every),
        "step at fault is a candidate": len(seen),
        "left over": sum(left_over(record, findings) for record, findings, _ in every),
    }
    result |= cost(every)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for kind, rows in result.items():
        if not isinstance(rows, dict):
            print(f"{kind}: {rows if not isinstance(rows, float) else round(rows, 2)}")
            continue
        print(f"{kind}, {rows.pop('runs')} runs")
        for way, row in rows.items():
            print(f"  {way:22}" + "  ".join(f"{name} {value:.3f}" for name, value in row.items()))


if __name__ == "__main__":
    main()
