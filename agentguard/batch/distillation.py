"""Distillation of failures to error schemata as an operation of a batch job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson

from agentguard.batch.fingerprint import describe_judgement
from agentguard.batch.operation import MIN_DETECTOR_DEADLINE_S, Operation, RunOutput
from agentguard.batch.output_table import OutputTable
from agentguard.config.policy import Policy
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.schemata.distillation.distiller import EmbeddedDistiller
from agentguard.schemata.model import Distiller, ErrorSchema
from agentguard.schemata.serialization import encode_schema
from agentguard.schemata.signal_trainer import detect_cached, select_group
from agentguard.trajectory.model import Record
from agentguard.verdict import Verdict

SCHEMA_TABLE: Final = OutputTable(
    folder="schemata",
    result_columns={"outcome": "string", "schema_id": "string", "codes": "list<string>", "schema": "string"},
    outcome="outcome",
)
"""Table of schemata.

- ``outcome`` is ``distilled``, or ``passed_over`` for a run without a failure that has recognisable features.
- ``schema`` is the schema of the failure as a line of a file of schemata; null without a schema. Equal
  failures are not merged yet.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationOperation(Operation):
    """Distillation of each failed run to a schema.

    Attributes:
        is_diagnosed: diagnose runs without an annotated root cause, and distil those that failed.
        judge_url, judge_model: endpoint and model that write the schemata of annotated runs; the embedded
            distiller without a URL.
        timeout_s: time limit of one failure.

    Raises:
        ConfigError: there is a model without a URL.
    """

    is_diagnosed: bool = False
    judge_url: str | None = None
    judge_model: str | None = None
    timeout_s: float = 120.0
    name: ClassVar[str] = "distill"
    table: ClassVar[OutputTable] = SCHEMA_TABLE

    def __post_init__(self) -> None:
        if self.judge_model is not None and self.judge_url is None:
            raise ConfigError("--judge-model needs --judge")

    def collect_facts(self) -> dict[str, Any]:
        """Return the settings, the installed detectors, the model and the taxonomies."""
        judge = {"url": self.judge_url, "model": self.judge_model}
        return {"is_diagnosed": self.is_diagnosed, "judge": judge, **describe_judgement()}

    def build_processor(self) -> DistillationProcessor:
        """Build the processor of a worker."""
        return DistillationProcessor(self)


class DistillationProcessor:
    """Processor that distils single failures."""

    def __init__(self, operation: DistillationOperation) -> None:
        self._embedded = EmbeddedDistiller()
        self._distiller = _build_distiller(operation) or self._embedded
        policy = Policy(detector_deadline_s=MIN_DETECTOR_DEADLINE_S, schemata=False)
        self._guard = Guard.from_policy(policy) if operation.is_diagnosed else None

    def distill(self, record: Record) -> ErrorSchema | None:
        """Return the schema of a failure, or None. Raises JudgeError."""
        run, annotation = record.trajectory, record.annotation
        if self._guard is None or annotation.root_cause is not None:
            return self._distiller.distill(record, detect_cached(run))
        diagnosis = self._guard.diagnose(run)
        if diagnosis.verdict is not Verdict.FAILED or annotation.failed is False:
            return None
        return self._embedded.distill_diagnosis(run, diagnosis, group=select_group(record))

    def process(self, record: Record) -> RunOutput:
        """Distil a run."""
        schema = self.distill(record)
        if schema is None:
            return RunOutput(values={"outcome": "passed_over"})
        values = {"outcome": "distilled", "schema_id": schema.id, "codes": list(schema.codes)}
        return RunOutput(values=values | {"schema": orjson.dumps(encode_schema(schema)).decode()})

    def close(self) -> None:
        """Close the guard."""
        if self._guard is not None:
            self._guard.close()


def _build_distiller(operation: DistillationOperation) -> Distiller | None:
    if operation.judge_url is None:
        return None
    from agentguard.judge.llm.client import JudgeEndpoint
    from agentguard.judge.llm.types import EndpointOptions
    from agentguard.schemata.distillation.llm_distiller import LLMDistiller

    options = EndpointOptions(deadline_s=operation.timeout_s)
    return LLMDistiller(JudgeEndpoint(operation.judge_url, model=operation.judge_model, options=options))
