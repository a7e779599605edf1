"""Batch job: apply an operation to the runs of many files, with a resumable output folder."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from agentguard.batch.chunks import (
    Chunk,
    InputFile,
    InputOptions,
    InputPosition,
    iter_chunks,
    list_input_files,
)
from agentguard.batch.engines import Engine
from agentguard.batch.operation import Operation
from agentguard.batch.output_folder import BatchOutput, build_slot
from agentguard.batch.processor import ChunkProcessor, ChunkResult, ProcessorConfig
from agentguard.version import __version__

_ESTIMATE_ROWS = 16


@dataclass(slots=True, kw_only=True)
class JobSummary:
    """Counts of a job.

    Attributes:
        rows: rows of the output that this job wrote.
        resumed_rows: rows of chunks that an earlier job had finished.
        outcomes: outcome, such as the verdict, to the number of rows of this job.
        revised_rows: rows, also of earlier jobs, whose outcome the second pass changed.
        errors: rows without a result.
        prompt_tokens, completion_tokens, cost_usd: cost of the judge's calls.
        is_complete: False if ``max_cost_usd`` ended the job early.
        share: share of the input that is read, from 0 to 1.
        resumed_share: share of the input in chunks that an earlier job had finished.
    """

    rows: int = 0
    resumed_rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    revised_rows: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    is_complete: bool = True
    share: float = 0.0
    resumed_share: float = 0.0

    def estimate_remaining_s(self, elapsed_s: float) -> float | None:
        """Return the seconds to the end of the job at its mean speed; None before the first chunk."""
        processed = self.share - self.resumed_share
        return elapsed_s * (1 - self.share) / processed if processed > 0 else None

    def add(self, result: ChunkResult, outcome: str) -> None:
        """Count the rows of a chunk by the values of the column ``outcome``."""
        for row in result.rows:
            self.rows += 1
            self.errors += row[outcome] is None
            self.outcomes.update([row[outcome]] if row[outcome] is not None else [])
            self.prompt_tokens += row.get("prompt_tokens") or 0
            self.completion_tokens += row.get("completion_tokens") or 0
            self.cost_usd += row.get("cost_usd") or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """Estimate of a job that was not run.

    Attributes:
        files: input files.
        rows: rows to process; a file that is read as a whole counts as one.
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
    """Job that applies an operation to the runs of many files.

    Args:
        inputs: paths, folders, globs or URLs of files.
        output: path or URL of the output folder.
        operation: operation on the runs, such as `DiagnosisOperation`.
        options: selection of the input.

    Raises:
        ConfigError: an input matches no file, or the output folder has results of another configuration.
        MissingExtra: the extra ``batch`` is not installed.
    """

    def __init__(
        self, inputs: Sequence[str], output: str, operation: Operation, options: InputOptions
    ) -> None:
        self._options = options
        self._files: list[InputFile] = list_input_files(inputs, options)
        facts = {
            "operation": operation.name,
            "agentguard_version": __version__,
            **operation.collect_facts(),
        }
        fingerprint = hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        self._config = ProcessorConfig(operation=operation, fingerprint=fingerprint)
        self._output = BatchOutput(output, fingerprint, facts, operation.table)
        self._slots: list[str] = []

    def run(
        self,
        engine: Engine,
        *,
        max_cost_usd: float | None = None,
        on_progress: Callable[[JobSummary], None] | None = None,
    ) -> JobSummary:
        """Process all chunks that are not done, then revise rows with the help of other rows.

        Args:
            engine: engine of the workers.
            max_cost_usd: cost of the judge after which no further chunk starts.
            on_progress: callback after each chunk.
        """
        summary = JobSummary()
        self._slots = []
        written_slots: set[str] = set()

        def iter_open_chunks() -> Iterator[Chunk]:
            position = InputPosition(0)
            for chunk in iter_chunks(self._files, self._options, position):
                former_share, summary.share = summary.share, position.share
                self._slots.append(build_slot(chunk))
                if self._output.is_done(chunk):
                    summary.resumed_rows += _count_rows(chunk)
                    summary.resumed_share += summary.share - former_share
                elif max_cost_usd is not None and summary.cost_usd >= max_cost_usd:
                    summary.is_complete = False
                    return
                else:
                    yield chunk

        for chunk, result in engine.run(iter_open_chunks(), self._config):
            self._output.write(chunk, result)
            written_slots.add(build_slot(chunk))
            summary.add(result, self._config.operation.table.outcome)
            if on_progress is not None:
                on_progress(summary)
        self._revise_rows(written_slots, summary)
        return summary

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the output rows of the chunks of the last `run`, in the order of the input."""
        for slot in self._slots:
            yield from self._output.read_rows(slot)

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
            measured.add(processor.process(sample), self._config.operation.table.outcome)
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

    def _revise_rows(self, written_slots: Container[str], summary: JobSummary) -> None:
        operation = self._config.operation
        outcome = operation.table.outcome
        for slot, former, rows in operation.revise_parts(self._output, self._slots):
            before, after = [row[outcome] for row in former], [row[outcome] for row in rows]
            summary.revised_rows += sum(old != new for old, new in zip(before, after, strict=True))
            if slot in written_slots:
                summary.outcomes.subtract(value for value in before if value is not None)
                summary.outcomes.update(value for value in after if value is not None)


def _count_rows(chunk: Chunk) -> int:
    return len(chunk.rows) if chunk.rows is not None else 1
