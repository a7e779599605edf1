"""Batch jobs: operations on many runs from files and object storage into a Parquet table, resumably."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.batch.chunks import InputOptions as InputOptions
    from agentguard.batch.conversion import ConversionOperation as ConversionOperation
    from agentguard.batch.diagnosis import DiagnosisOperation as DiagnosisOperation
    from agentguard.batch.distillation import DistillationOperation as DistillationOperation
    from agentguard.batch.engines import Engine as Engine, LocalEngine as LocalEngine
    from agentguard.batch.evaluation import (
        EvaluationOperation as EvaluationOperation,
        score_rows as score_rows,
    )
    from agentguard.batch.job import (
        BatchJob as BatchJob,
        JobEstimate as JobEstimate,
        JobSummary as JobSummary,
    )
    from agentguard.batch.operation import Operation as Operation
    from agentguard.batch.ray_engine import RayEngine as RayEngine
    from agentguard.batch.report import (
        BatchReport as BatchReport,
        build_batch_report as build_batch_report,
        compute_table_version as compute_table_version,
        is_verdict_folder as is_verdict_folder,
    )
    from agentguard.batch.report_page import render_batch_parts as render_batch_parts

_EXPORTS = {
    "BatchJob": "agentguard.batch.job",
    "BatchReport": "agentguard.batch.report",
    "ConversionOperation": "agentguard.batch.conversion",
    "DiagnosisOperation": "agentguard.batch.diagnosis",
    "DistillationOperation": "agentguard.batch.distillation",
    "Engine": "agentguard.batch.engines",
    "EvaluationOperation": "agentguard.batch.evaluation",
    "InputOptions": "agentguard.batch.chunks",
    "JobEstimate": "agentguard.batch.job",
    "JobSummary": "agentguard.batch.job",
    "LocalEngine": "agentguard.batch.engines",
    "Operation": "agentguard.batch.operation",
    "RayEngine": "agentguard.batch.ray_engine",
    "build_batch_report": "agentguard.batch.report",
    "compute_table_version": "agentguard.batch.report",
    "is_verdict_folder": "agentguard.batch.report",
    "render_batch_parts": "agentguard.batch.report_page",
    "score_rows": "agentguard.batch.evaluation",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
