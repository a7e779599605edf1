"""Model card of ``agentguard judge train``: data and measured scores of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentguard.errors import EvaluationError, InputError
from agentguard.evals.datasets.dataset import Dataset, compute_checksum
from agentguard.evals.evaluate import evaluate
from agentguard.evals.result import Evaluation
from agentguard.judge.embedded.label_counts import MINIMUM_LABELS, LabelCounts, get_root_cause_step
from agentguard.judge.embedded.run_digests import encode_digests
from agentguard.judge.embedded.training import build_untrained_model
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.quantity import format_quantity
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.grouping import group_by_agent
from agentguard.trajectory.model import Record

_MAX_LISTED_AGENTS: Final = 5

ProgressCallback = Callable[[str], None]

LIMITS = (
    "Root causes were learnt from failed runs of two multi-agent systems; on other kinds of log the ranking "
    "is a structural prior with a few behaviours, and findings of detectors.",
    "Without labels of an agent, most runs get no verdict, and the probability of failure is for even odds.",
    "The blend and the features were chosen while looking at cross-validation on the same development data: "
    "expect a little less on new data.",
    "Two groups of annotators agree on the exact step in about a third of long orchestrated runs: no score "
    "there means much above that.",
    "English words; runs in other languages keep only structure, numbers and outcomes.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSource:
    """Annotated runs of one path."""

    name: str
    licence: str | None
    data: Dataset

    @property
    def records(self) -> tuple[Record, ...]:
        """The runs."""
        return self.data.records

    def name_systems(self) -> tuple[str, ...]:
        """Return the name of each record's system: the source and the agent."""
        agents = group_by_agent([record.trajectory for record in self.records])
        return tuple(f"{self.name}: {agent}" for agent in agents)

    def has_causes(self) -> bool:
        """Return whether any run is annotated with a root cause."""
        return any(get_root_cause_step(r) is not None for r in self.records)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of the card; it contains no path."""
        outcomes = [r.annotation.failed for r in self.records if r.annotation.failed is not None]
        return {
            "name": self.name,
            "licence": self.licence,
            "sha256": self.data.checksum,
            "runs": len(self.records),
            "failed": sum(outcomes),
            "passed": len(outcomes) - sum(outcomes),
            "root_causes": sum(get_root_cause_step(r) is not None for r in self.records),
            "run_digests": encode_digests(record.trajectory for record in self.records),
        }


def merge_card_data(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a card's data without repeated checksums."""
    return list({entry["sha256"]: entry for entry in reversed(entries)}.values())[::-1]


def read_source(path: Path, *, format: str | None = None) -> CardSource:
    """Read the annotated runs of a path. Raises EvaluationError if it contains no run."""
    records: list[Record] = []
    broken: list[InputError] = []
    for item in read(path, format=format):
        if isinstance(item, UnreadableRecord):
            broken.append(item.error)
        else:
            records.append(item)
    if not records:
        raise EvaluationError(f"no run could be read from {path}")
    kind = records[0].trajectory.format
    name = f"{kind}/{path.name}" if path.is_dir() else kind
    data = Dataset(
        name=name,
        records=tuple(records),
        parts=("",) * len(records),
        broken=tuple(broken),
        checksum=compute_checksum([path]),
    )
    return CardSource(name=name, licence=_find_licence(path), data=data)


def require_specialist(count: int, agents: Sequence[LabelCounts], report: ProgressCallback) -> None:
    """Report the agents without a complete specialist.

    Args:
        count: number of specialists that training made.
        agents: labels by agent.
        report: receives a line for each agent.

    Raises:
        EvaluationError: training made no specialist.
    """
    texts = [
        f"{one.agent}: {one.failed} failed, {one.passed} passed, {one.root_causes} with a root cause"
        for one in agents
    ]
    if not count:
        more = len(texts) - _MAX_LISTED_AGENTS
        listed = "; ".join(texts[:_MAX_LISTED_AGENTS]) + (
            f"; and {format_quantity(more, 'more agent')}" if more > 0 else ""
        )
        raise EvaluationError(
            f"too few labels to train on. Labelled runs by agent: {listed}. For each agent, {MINIMUM_LABELS}"
        )
    for one, text in zip(agents, texts, strict=True):
        missing = [
            *([] if one.trains_ranking else ["ranking of steps"]),
            *([] if one.trains_outcomes else ["outcome model"]),
        ]
        if missing:
            report(f"not trained: {' and '.join(missing)} of {text}")


def _find_licence(path: Path) -> str | None:
    """Return the first line of the licence in the data's folder or one above; None without a file."""
    for folder in (path if path.is_dir() else path.parent, path.parent):
        for file in sorted(folder.glob("LICENSE*")):
            lines = [line.strip(" #") for line in file.read_text(errors="replace").splitlines()]
            return next((line for line in lines if line), None)
    return None


def compute_scores(
    sources: Sequence[CardSource], *, repeats: int, report_progress: ProgressCallback
) -> list[dict[str, Any]]:
    """Cross-validate on each source, and measure transfer between those with root causes."""
    scores = []
    for source in sources:
        report_progress(f"cross-validating on {source.name}")
        method = EmbeddedLocalizer.from_model(build_untrained_model())
        scores.append(
            _build_score(
                evaluate(source.data, method, cv="question", repeats=repeats), "cross_validated", source.name
            )
        )
    sources_with_causes = [source for source in sources if source.has_causes()]
    for test in sources_with_causes:
        for learnt in sources_with_causes:
            if learnt is not test:
                report_progress(f"transfer from {learnt.name} to {test.name}")
                result = evaluate(
                    test.data, EmbeddedLocalizer.from_model(build_untrained_model()), train=learnt.data
                )
                scores.append(_build_score(result, "transfer", test.name) | {"trained_on": learnt.name})
    return scores


def _build_score(result: Evaluation, setting: str, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"data": name, "setting": setting, "n": result.n, "repeats": result.repeats}
    if result.localization is not None and result.localization.n:
        localization = result.localization.as_dict()
        row |= {
            key: localization[key]
            for key in ("step_accuracy", "agent_accuracy", "sd", "within", "top", "wilson95")
        }
        row["calibration"] = localization["calibration"]
        row["baselines"] = {
            label: {"step": beside.localization.step.mean, "agent": beside.localization.agent.mean}
            for label, beside in result.baselines.items()
            if beside.localization is not None
        }
    if result.outcome is not None:
        outcome = result.outcome.as_dict()
        outcome_fields = ("auroc", "auroc_sd", "average_precision", "brier", "calibration_error")
        row |= {key: outcome[key] for key in (*outcome_fields, "verdicts", "named_on_passed", "undecided")}
        row["run_size_auroc"] = result.run_size_auroc
    return dict(_round_values(row))


def _round_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_round_values(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value
