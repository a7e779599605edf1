"""Driver of a batch job in a process that a test kills, and a processor that a row can crash."""

from __future__ import annotations

import os
import sys

from agentguard.batch import BatchJob, DiagnosisOperation, InputOptions, LocalEngine
from agentguard.batch.chunks import Chunk
from agentguard.batch.processor import ChunkProcessor, ChunkResult
from agentguard.config.policy import Policy

POISON = b"poison"


class FragileProcessor(ChunkProcessor):
    """Processor whose process ends on a row with `POISON`, as native code that crashes."""

    def process(self, chunk: Chunk) -> ChunkResult:
        if any(POISON in row for row in chunk.rows or () if isinstance(row, bytes)):
            os._exit(70)
        return super().process(chunk)


def main(source: str, output: str) -> None:
    """Run the job; print the process ids of the workers and then a line a chunk."""
    job = BatchJob([source], output, DiagnosisOperation(Policy()), InputOptions(rows_per_chunk=4))
    summary = job.run(LocalEngine(2), on_progress=lambda summary: print(summary.rows, flush=True))
    print("done", summary.rows, summary.resumed_rows, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
