"""Diagnosis as an operation of a batch job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import orjson

from agentguard.batch.fingerprint import describe_judgement, digest_files, digest_schemata
from agentguard.batch.operation import MIN_DETECTOR_DEADLINE_S, Operation, PartRevision, RunOutput
from agentguard.batch.output_folder import BatchOutput
from agentguard.batch.output_table import OutputTable
from agentguard.batch.run_comparison import compare_parts
from agentguard.batch.verdict_table import VERDICT_TABLE, build_verdict_values
from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.localize.run_comparison import RunComparator, compute_signals, is_comparable
from agentguard.trajectory.costs import price_run
from agentguard.trajectory.model import Record


@dataclass(frozen=True, slots=True)
class DiagnosisOperation(Operation):
    """Diagnosis of each run, and the comparison with the other runs of its agent.

    The default store is not read: the workers of a job may run on other machines, and a resumed job must not
    depend on schemata learnt in the meantime.

    Attributes:
        policy: policy of the diagnosis.
    """

    policy: Policy
    name: ClassVar[str] = "diagnose"
    table: ClassVar[OutputTable] = VERDICT_TABLE

    def __post_init__(self) -> None:
        """Leave the default store out."""
        if self.policy.schemata is True:
            object.__setattr__(self, "policy", self.policy.model_copy(update={"schemata": False}))

    def collect_facts(self) -> dict[str, Any]:
        """Return the policy with its files, the detectors, the model, the taxonomies and the schemata."""
        return {
            "policy": orjson.loads(self.policy.model_dump_json()),
            **describe_judgement(),
            "schemata": digest_schemata(self.policy.schemata),
            "files": {
                option: digest_files([Path(value)])
                for option, value in (self.policy.resolve_localizer().model_extra or {}).items()
                if isinstance(value, str) and Path(value).is_file()
            },
        }

    def build_processor(self) -> DiagnosisProcessor:
        """Build the processor of a worker."""
        return DiagnosisProcessor(self.policy)

    def revise_parts(self, output: BatchOutput, slots: Sequence[str]) -> Iterator[PartRevision]:
        """Compare each run with the other runs of its agent."""
        processor = self.build_processor()
        processor.close()
        if processor.comparator is None:
            return iter(())
        return compare_parts(output, slots, processor.comparator)


class DiagnosisProcessor:
    """Processor of runs with one guard.

    Attributes:
        comparator: comparator of the runs of an agent; None if the localizer compares no runs.
    """

    def __init__(self, policy: Policy) -> None:
        deadline = max(policy.detector_deadline_s, MIN_DETECTOR_DEADLINE_S)
        self._guard = Guard.from_policy(policy.model_copy(update={"detector_deadline_s": deadline}))
        self._prices = policy.prices
        self.comparator = RunComparator.from_localizer(self._guard.localizer)

    def process(self, record: Record) -> RunOutput:
        """Diagnose a run."""
        run = price_run(record.trajectory, self._prices)
        diagnosis = self._guard.diagnose(run)
        has_signals = self.comparator is not None and is_comparable(run, diagnosis)
        signals = compute_signals(run, diagnosis.findings).tolist() if has_signals else ()
        return RunOutput(
            values=build_verdict_values(run, diagnosis, signals), is_retryable=bool(diagnosis.failures)
        )

    def close(self) -> None:
        """Close the judges of the guard."""
        self._guard.close()
