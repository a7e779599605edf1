"""Export of runs as OpenTelemetry spans, with agentguard's assessment, to any collector over OTLP/HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.otlp.assessed_spans import (
        RunAssessment as RunAssessment,
        build_assessed_spans as build_assessed_spans,
        load_stored_spans as load_stored_spans,
    )
    from agentguard.otlp.exporter import (
        ExportResult as ExportResult,
        ExportTarget as ExportTarget,
        send as send,
    )

_EXPORTS = {
    "ExportResult": "agentguard.otlp.exporter",
    "ExportTarget": "agentguard.otlp.exporter",
    "RunAssessment": "agentguard.otlp.assessed_spans",
    "build_assessed_spans": "agentguard.otlp.assessed_spans",
    "load_stored_spans": "agentguard.otlp.assessed_spans",
    "send": "agentguard.otlp.exporter",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="otel")
