"""Evaluation of methods as an operation of a batch job: one row of annotation and predictions a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import orjson

from agentguard.batch.fingerprint import describe_judgement
from agentguard.batch.operation import Operation, RunOutput
from agentguard.batch.output_table import OutputTable
from agentguard.detect.lazy_findings import LazyFindings
from agentguard.errors import ConfigError, EvaluationError, InputError
from agentguard.evals.datasets.dataset import Dataset, add_gold_answer, to_dataset
from agentguard.evals.evaluate import Evaluation
from agentguard.evals.methods import BASELINES, MethodSpec, as_localizer, is_localizer, is_trainable
from agentguard.evals.prediction import Prediction, predict
from agentguard.evals.result import Setting, score_predictions
from agentguard.evals.scoring import Case
from agentguard.evals.splits import list_groups
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.trajectory.model import Record

EVALUATION_TABLE: Final = OutputTable(
    folder="predictions",
    result_columns={
        "question": "string",
        "annotated_failed": "bool",
        "annotated_step": "int32",
        "annotated_agent": "string",
        "annotated_module": "string",
        "annotated_codes": "list<string>",
        "method": "string",
        "verdict": "string",
        "probability": "double",
        "step": "int32",
        "agent": "string",
        "is_training_run": "bool",
        "predictions": "string",
    },
    outcome="verdict",
)
"""Table of predictions.

- ``question`` is a hash of the question; equal questions have equal hashes. The annotated columns are null
  without an annotation.
- ``verdict``, ``probability``, ``step`` and ``agent`` are of the first ``method``. The verdict is ``error``
  if the method failed on the run.
- ``is_training_run`` is true if a method was trained on the run.
- ``predictions`` has the predictions of all methods and baselines by label, as JSON.
"""


def list_untrained_baselines() -> tuple[MethodSpec, ...]:
    """Return the baselines that need no annotated runs for training."""
    return tuple(spec for spec in BASELINES if is_localizer(spec.build()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOperation(Operation):
    """Predictions of methods and baselines for each run.

    Attributes:
        methods: the methods; their options must be JSON data.
        with_answer: let methods read the gold answer.

    Raises:
        ConfigError: a method must be trained before it can predict.
    """

    methods: tuple[MethodSpec, ...]
    with_answer: bool = False
    name: ClassVar[str] = "eval"
    table: ClassVar[OutputTable] = EVALUATION_TABLE

    def __post_init__(self) -> None:
        for spec in self.methods:
            if not is_localizer(spec.build()):
                raise ConfigError(
                    f"{spec.label} learns from annotated runs, and a batch job trains nothing: "
                    "leave --batch-output out, or name another --method"
                )

    def collect_facts(self) -> dict[str, Any]:
        """Return the methods, the installed detectors, the model and the taxonomies."""
        methods = {spec.label: [spec.localizer, dict(spec.options)] for spec in self.methods}
        return {"methods": methods, "with_answer": self.with_answer, **describe_judgement()}

    def build_processor(self) -> EvaluationProcessor:
        """Build the processor of a worker."""
        return EvaluationProcessor(self)


class EvaluationProcessor:
    """Processor that lets methods predict single runs."""

    def __init__(self, operation: EvaluationOperation) -> None:
        self._with_answer = operation.with_answer
        specs = {spec.label: spec for spec in (*operation.methods, *list_untrained_baselines())}
        self._methods = {label: as_localizer(spec.build()) for label, spec in specs.items()}

    def process(self, record: Record) -> RunOutput:
        """Predict the root cause and the outcome of a run."""
        (case,) = to_dataset([record]).build_cases()
        run = (add_gold_answer(record) if self._with_answer else record).trajectory
        findings = LazyFindings(run)
        (group,) = list_groups([record])
        predictions = {
            label: predict(method.without_group(group), run, findings, run=case.run)
            for label, method in self._methods.items()
        }
        method, first = next(iter(predictions.items()))
        values = {
            **_describe_case(case),
            "method": method,
            "verdict": first.verdict,
            "probability": first.probability,
            "step": first.steps[0] if first.steps else None,
            "agent": first.agents[0] if first.agents else None,
            "is_training_run": self._is_training_run(record),
            "predictions": orjson.dumps(
                {label: _encode_prediction(prediction) for label, prediction in predictions.items()}
            ).decode(),
            "error": first.error,
        }
        has_errors = any(prediction.error for prediction in predictions.values())
        return RunOutput(values=values, is_retryable=has_errors)

    def close(self) -> None:
        """Close the methods."""
        for method in self._methods.values():
            method.close()

    def _is_training_run(self, record: Record) -> bool:
        return any(
            isinstance(method, EmbeddedLocalizer) and method.count_training_runs([record.trajectory]) > 0
            for method in self._methods.values()
        )


@dataclass(slots=True)
class PredictionRows:
    """Cases and predictions from the rows of a table."""

    cases: list[Case] = field(default_factory=list)
    predictions: dict[str, list[Prediction]] = field(default_factory=dict)
    broken: list[InputError] = field(default_factory=list)
    training_runs: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; a row without predictions counts as broken."""
        if row["verdict"] is None:
            self.broken.append(InputError(row["error"], file=row["source"], record=row["record"]))
            return
        key = f"{row['source']}#{row['record']}"
        self.training_runs += row["is_training_run"]
        self.cases.append(
            Case(
                run=key,
                part="",
                length=row["steps"],
                step=row["annotated_step"],
                agent=row["annotated_agent"],
                module=row["annotated_module"],
                codes=tuple(row["annotated_codes"]),
                failed=row["annotated_failed"],
                id=row["run_id"],
                group=row["question"],
            )
        )
        for label, values in orjson.loads(row["predictions"]).items():
            prediction = Prediction.from_dict({**values, "run": key})
            self.predictions.setdefault(label, []).append(prediction)


def score_rows(
    rows: Iterable[Mapping[str, Any]],
    methods: Sequence[MethodSpec],
    *,
    dataset: str,
    allow_training_data: bool = False,
) -> tuple[tuple[Evaluation, ...], Dataset]:
    """Score the predictions of a table.

    Args:
        rows: rows of the table.
        methods: the methods of the operation.
        dataset: name of the data set in the results.
        allow_training_data: score a model on runs that it was trained on.

    Returns:
        The result of each method beside the baselines, and the data set with the unreadable records.

    Raises:
        EvaluationError: no run is annotated, or a model was trained on the runs.
    """
    table = PredictionRows()
    for row in rows:
        table.add(row)
    if not any(case.step is not None or case.failed is not None for case in table.cases):
        raise EvaluationError(f"{dataset}: no run is annotated, so there is nothing to score")
    if table.training_runs and not allow_training_data:
        raise EvaluationError(
            f"{dataset}: the model was trained on {table.training_runs} of the {len(table.cases)} runs, so "
            "its scores here say nothing about other runs: use --allow-training-data, or --cv question "
            "without --batch-output"
        )
    data = Dataset(name=dataset, records=(), broken=tuple(table.broken))
    evaluations = {
        spec.label: score_predictions(
            data,
            table.cases,
            table.predictions[spec.label],
            method=spec.label,
            setting=_get_setting(spec, table.training_runs),
        )
        for spec in (*list_untrained_baselines(), *methods)
    }
    baselines = {spec.label: evaluations[spec.label] for spec in list_untrained_baselines()}
    return tuple(replace(evaluations[spec.label], baselines=baselines) for spec in methods), data


def _get_setting(spec: MethodSpec, training_runs: int) -> Setting:
    method = spec.build()
    if not is_trainable(method):
        return Setting.UNTRAINED
    is_trained_on_runs = training_runs > 0 and isinstance(method, EmbeddedLocalizer)
    return Setting.TRAINING_DATA if is_trained_on_runs else Setting.AS_SHIPPED


def _describe_case(case: Case) -> dict[str, Any]:
    return {
        "question": case.group,
        "annotated_failed": case.failed,
        "annotated_step": case.step,
        "annotated_agent": case.agent,
        "annotated_module": case.module,
        "annotated_codes": list(case.codes),
    }


def _encode_prediction(prediction: Prediction) -> dict[str, Any]:
    """Return the values of a prediction that do not depend on the file or the machine."""
    return {name: value for name, value in prediction.as_dict().items() if name not in ("run", "seconds")}
