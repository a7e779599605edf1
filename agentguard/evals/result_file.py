"""File format of an evaluation: the predictions, from which all scores are computed.

``agentguard eval`` writes one JSON file per command, with the cases and, for every method and baseline, its
prediction for every run and repeat. The file contains no scores. They are computed when the file is read, so
that a file and the code that shows it agree. Of a run, the file contains only ids, agent names and codes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from agentguard.errors import EvaluationError, FormatError
from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.prediction import Prediction
from agentguard.evals.result import Evaluation, Setting, score_predictions
from agentguard.evals.runner import EvaluationPlan
from agentguard.evals.scoring import Case
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard.verdict import upgrade_verdict
from agentguard.version import __version__

FORMAT = "agentguard.evaluation"
RESULTS_FOLDER = Path(".agentguard/evals")
"""Folder of the results of ``agentguard eval``, and default folder of the viewer."""

_VERSION = 1
_PREFIX = orjson.dumps({"format": FORMAT})[:-1]
_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """One file: the methods that were measured together, each with the same baselines.

    Attributes:
        id: first hexadecimal digits of the SHA-256 of the file; independent of its location.
        made_at: time of the measurement, epoch seconds.
        agentguard: version that measured it.
        plan: plan of the evaluation.
        results: one result per method, with the baselines.
    """

    id: str
    made_at: float
    agentguard: str
    plan: EvaluationPlan
    results: tuple[Evaluation, ...]

    def find_method(self, name: str) -> Evaluation | None:
        """Return the result of a method or baseline, or None if the name is unknown."""
        first = self.results[0]
        measured = {one.method: one for one in (*first.baselines.values(), *self.results)}
        return measured.get(name)


def write_result_file(path: Path, results: Sequence[Evaluation], *, plan: EvaluationPlan) -> Path:
    """Write ``results``, which share a data set and baselines; replace an existing file atomically.

    Raises:
        EvaluationError: the file cannot be written.
    """
    raw = orjson.dumps(_encode_results(results, plan))
    temporary_path = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path.write_bytes(raw)
        temporary_path.replace(path)
    except OSError as error:
        raise EvaluationError(f"{path} cannot be written: {error.strerror}") from None
    return path


def build_file_name(results: Sequence[Evaluation]) -> str:
    """Return a file name for results: time, data set, and a few digits that make it unique."""
    first = results[0]
    dataset_name = "".join(
        character if character.isalnum() and character.isascii() else "_" for character in first.dataset
    )[:40]
    identity = "\0".join((*(result.method for result in results), first.checksum, str(time.time_ns())))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:6]
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{dataset_name}-{digest}.json"


def is_result_file(path: Path) -> bool:
    """Return whether a file begins like a result file; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_PREFIX)) == _PREFIX
    except OSError:
        return False


def find_result_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the result files among ``paths`` and directly inside folders of ``paths``, latest name first."""
    for path in paths:
        candidates = sorted(path.glob("*.json"), reverse=True) if path.is_dir() else [path]
        yield from (candidate for candidate in candidates if is_result_file(candidate))


def read_result_file(path: Path) -> ResultFile:
    """Read a file and score its predictions.

    Raises:
        FormatError: the file is not an evaluation, has another version, or contains an invalid value.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FormatError(f"larger than {_MAX_BYTES} bytes", file=str(path))
        raw = path.read_bytes()
        return _decode_file(JsonNode.from_value(orjson.loads(raw)), hashlib.sha256(raw).hexdigest()[:16])
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except orjson.JSONDecodeError:
        raise FormatError("is not JSON", file=str(path)) from None
    except FormatError as error:
        raise error.with_location(file=str(path)) from None


def _encode_results(results: Sequence[Evaluation], plan: EvaluationPlan) -> dict[str, Any]:
    first = results[0]
    method_names = {result.method for result in results}
    other_baselines = [result for label, result in first.baselines.items() if label not in method_names]
    return {
        "format": FORMAT,
        "version": _VERSION,
        "agentguard": __version__,
        "made_at": time.time(),
        "dataset": first.dataset,
        "checksum": first.checksum,
        "broken": first.broken,
        "plan": asdict(plan),
        "cases": [asdict(case) for case in first.cases],
        "methods": [_encode_method(result, baseline=result.method in first.baselines) for result in results]
        + [_encode_method(result, baseline=True, is_measured=False) for result in other_baselines],
    }


def _encode_method(evaluation: Evaluation, *, baseline: bool, is_measured: bool = True) -> dict[str, Any]:
    return {
        "method": evaluation.method,
        "setting": evaluation.setting.value,
        "measured": is_measured,
        "baseline": baseline,
        "fit_seconds": evaluation.fit_seconds,
        "predictions": [one.as_dict() for one in evaluation.predictions],
    }


def _decode_file(node: JsonNode, id: str) -> ResultFile:
    if node.text_or("format") != FORMAT:
        raise FormatError(
            "is not a saved evaluation",
            hint="agentguard eval --output writes one; its --json has no predictions",
        )
    if node.integer("version") != _VERSION:
        raise node.build_error("version", f"is {node.integer('version')}, this agentguard reads {_VERSION}")
    cases = tuple(_decode_case(child) for child in node.nodes("cases"))
    run_names = {case.run for case in cases}
    evaluations = [
        (child, _decode_evaluation(node, child, cases, run_names)) for child in node.nodes("methods")
    ]
    baselines = {
        evaluation.method: evaluation for child, evaluation in evaluations if child.boolean("baseline")
    }
    results = tuple(
        replace(evaluation, baselines=baselines)
        for child, evaluation in evaluations
        if child.boolean("measured")
    )
    if not results or not cases:
        raise FormatError("has no result")
    return ResultFile(
        id=id,
        made_at=node.number("made_at"),
        agentguard=node.text("agentguard"),
        plan=_decode_plan(node.node("plan")),
        results=results,
    )


def _decode_evaluation(node: JsonNode, one: JsonNode, cases: tuple[Case, ...], known: set[str]) -> Evaluation:
    setting = one.text("setting")
    if setting not in set(Setting):
        raise one.build_error("setting", f"expected one of {', '.join(Setting)}")
    data = Dataset(name=node.text("dataset"), records=(), checksum=node.text_or("checksum"))
    evaluation = score_predictions(
        data,
        cases,
        tuple(_decode_prediction(prediction, known) for prediction in one.nodes("predictions")),
        method=one.text("method"),
        setting=Setting(setting),
        fit_seconds=one.number("fit_seconds"),
    )
    return replace(evaluation, broken=node.integer("broken"))


def _decode_case(node: JsonNode) -> Case:
    return Case(
        run=node.text("run"),
        part=node.text("part"),
        length=node.integer("length"),
        step=node.integer_or("step"),
        agent=_read_text_or_none(node, "agent"),
        module=_read_text_or_none(node, "module"),
        codes=_read_texts(node, "codes"),
        failed=node.boolean_or("failed"),
        id=node.text_or("id"),
        group=node.text_or("group"),
    )


def _decode_prediction(node: JsonNode, known: set[str]) -> Prediction:
    steps, agents = tuple(node.items("steps")), _read_texts(node, "agents")
    if any(isinstance(step, bool) or not isinstance(step, int) for step in steps) or len(steps) != len(
        agents
    ):
        raise node.build_error("steps", "expected whole numbers, one for each of the agents")
    if node.text("run") not in known:
        raise node.build_error("run", "is not one of the cases")
    return Prediction(
        run=node.text("run"),
        repeat=node.integer("repeat"),
        fold=node.integer("fold"),
        steps=steps,
        agents=agents,
        module=_read_text_or_none(node, "module"),
        code=_read_text_or_none(node, "code"),
        confidence=_read_share(node, "confidence") or 0.0,
        verdict=upgrade_verdict(node.text("verdict")),
        probability=_read_share(node, "probability"),
        seconds=node.number("seconds"),
        error=_read_text_or_none(node, "error"),
    )


def _decode_plan(node: JsonNode) -> EvaluationPlan:
    return EvaluationPlan(
        cv="question" if node.raw("cv") == "question" else None,
        folds=node.integer("folds"),
        repeats=node.integer("repeats"),
        with_answer=node.boolean("with_answer"),
        shuffle_labels=node.boolean("shuffle_labels"),
        seed=node.integer("seed"),
    )


def _read_share(node: JsonNode, key: str) -> float | None:
    value = node.number_or(key)
    if value is not None and not 0 <= value <= 1:
        raise node.build_error(key, "expected a number in [0, 1]")
    return value


def _read_texts(node: JsonNode, key: str) -> tuple[str, ...]:
    texts = node.items(key)
    if not all(isinstance(text, str) for text in texts):
        raise node.build_error(key, "expected texts")
    return tuple(texts)


def _read_text_or_none(node: JsonNode, key: str) -> str | None:
    return node.text(key) if node.raw(key) is not None else None
