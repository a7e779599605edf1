"""Batch job: diagnose the runs of many files into an output folder, resumably."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from agentguard.batch.chunks import Chunk, InputFile, InputOptions, iter_chunks, list_input_files
from agentguard.batch.comparison import compare_parts
from agentguard.batch.engines import Engine
from agentguard.batch.output import BatchOutput, build_slot
from agentguard.batch.processor import ChunkProcessor, ChunkResult, ProcessorConfig
from agentguard.config.policy import Policy
from agentguard.detect.base import detectors
from agentguard.judge.embedded.model_io import load_card
from agentguard.taxonomy.loader import TaxonomyCatalog
from agentguard.version import __version__

_ESTIMATE_ROWS = 16


@dataclass(slots=True, kw_only=True)
class JobSummary:
    """Counts of a job.

    Attributes:
        rows: rows of the output that this job wrote.
        resumed_rows: rows of chunks that an earlier job had finished.
        verdicts: verdict to the number of rows of this job.
        revised_rows: rows, also of earlier jobs, whose verdict the comparison with other runs changed.
        errors: rows without a verdict.
        prompt_tokens, completion_tokens, cost_usd: cost of the judge's calls.
        is_complete: False if ``max_cost_usd`` ended the job early.
    """

    rows: int = 0
    resumed_rows: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    revised_rows: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    is_complete: bool = True

    def add(self, result: ChunkResult) -> None:
        """Count the rows of a chunk."""
        for row in result.rows:
            self.rows += 1
            self.errors += row["verdict"] is None
            self.verdicts.update([row["verdict"]] if row["verdict"] else [])
            self.prompt_tokens += row["prompt_tokens"] or 0
            self.completion_tokens += row["completion_tokens"] or 0
            self.cost_usd += row["cost_usd"] or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """Estimate of a job that was not run.

    Attributes:
        files: input files.
        rows: rows to diagnose; a file that is read as a whole counts as one.
        finished_rows: rows of chunks that are done.
        seconds_per_row: processor time of one row, measured on a few rows; 0 without readable rows.
        tokens_per_row: tokens of the judge for one row, measured likewise.
        cost_usd_per_row: cost of the judge for one row.
    """

    files: int
    rows: int
    finished_rows: int
    seconds_per_row: float
    tokens_per_row: float
    cost_usd_per_row: float


class BatchJob:
    """Job that diagnoses the runs of many files.

    Args:
        inputs: paths, folders, globs or URLs of files.
        output: path or URL of the output folder.
        policy: policy of the diagnosis.
        options: selection of the input.

    Raises:
        ConfigError: an input matches no file, or the output folder has results of another configuration.
        MissingExtra: the extra ``batch`` is not installed.
    """

    def __init__(self, inputs: Sequence[str], output: str, policy: Policy, options: InputOptions) -> None:
        self._options = options
        self._files: list[InputFile] = list_input_files(inputs, options)
        facts = _collect_facts(policy)
        fingerprint = hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        self._config = ProcessorConfig(policy=policy.model_dump_json(), fingerprint=fingerprint)
        self._output = BatchOutput(output, fingerprint, facts)

    def run(
        self,
        engine: Engine,
        *,
        max_cost_usd: float | None = None,
        on_progress: Callable[[JobSummary], None] | None = None,
    ) -> JobSummary:
        """Diagnose all chunks that are not done, and compare each run with the other runs of its agent.

        Args:
            engine: engine of the workers.
            max_cost_usd: cost of the judge after which no further chunk starts.
            on_progress: callback after each chunk.
        """
        summary = JobSummary()
        slots: list[str] = []
        written_slots: set[str] = set()

        def iter_open_chunks() -> Iterator[Chunk]:
            for chunk in iter_chunks(self._files, self._options):
                slots.append(build_slot(chunk))
                if self._output.is_done(chunk):
                    summary.resumed_rows += _count_rows(chunk)
                elif max_cost_usd is not None and summary.cost_usd >= max_cost_usd:
                    summary.is_complete = False
                    return
                else:
                    yield chunk

        for chunk, result in engine.run(iter_open_chunks(), self._config):
            self._output.write(chunk, result)
            written_slots.add(build_slot(chunk))
            summary.add(result)
            if on_progress is not None:
                on_progress(summary)
        self._compare_runs(slots, written_slots, summary)
        return summary

    def estimate(self) -> JobEstimate:
        """Count the rows, and measure the cost of a few of them without writing anything."""
        rows = finished_rows = 0
        sample: Chunk | None = None
        for chunk in iter_chunks(self._files, self._options):
            rows += _count_rows(chunk)
            is_done = self._output.is_done(chunk)
            finished_rows += _count_rows(chunk) if is_done else 0
            if sample is None and not is_done:
                sample = chunk
        seconds, measured = 0.0, JobSummary()
        if sample is not None:
            if sample.rows is not None:
                sample = replace(
                    sample, rows=sample.rows[:_ESTIMATE_ROWS], records=sample.records[:_ESTIMATE_ROWS]
                )
            processor = ChunkProcessor(self._config)
            begin = time.process_time()
            measured.add(processor.process(sample))
            seconds = time.process_time() - begin
            processor.close()
        count = max(measured.rows, 1)
        return JobEstimate(
            files=len(self._files),
            rows=rows,
            finished_rows=finished_rows,
            seconds_per_row=seconds / count,
            tokens_per_row=(measured.prompt_tokens + measured.completion_tokens) / count,
            cost_usd_per_row=measured.cost_usd / count,
        )

    def _compare_runs(self, slots: Sequence[str], written_slots: Container[str], summary: JobSummary) -> None:
        processor = ChunkProcessor(self._config)
        comparator = processor.comparator
        processor.close()
        if comparator is None:
            return
        for slot, former, rows in compare_parts(self._output, slots, comparator):
            pairs = list(zip(former, rows, strict=True))
            summary.revised_rows += sum(old["verdict"] != new["verdict"] for old, new in pairs)
            if slot in written_slots:
                summary.verdicts.subtract(row["verdict"] for row in former if row["verdict"])
                summary.verdicts.update(row["verdict"] for row in rows if row["verdict"])


def _count_rows(chunk: Chunk) -> int:
    return len(chunk.rows) if chunk.rows is not None else 1


def _collect_facts(policy: Policy) -> dict[str, Any]:
    """Return all that changes results: version, policy, installed detectors, model and taxonomies."""
    return {
        "agentguard_version": __version__,
        "policy": orjson.loads(policy.model_dump_json()),
        "detectors": sorted(detectors()),
        "model": load_card().get("sha256"),
        "taxonomies": _digest_files(TaxonomyCatalog.load().files()),
        "files": {
            option: _digest_files([Path(value)])
            for option, value in (policy.resolve_localizer().model_extra or {}).items()
            if isinstance(value, str) and Path(value).is_file()
        },
    }


def _digest_files(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
