"""Localizers: methods that rank the steps of a run as candidates for the root cause; one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.localize.base import (
        BaseLocalizer as BaseLocalizer,
        Diagnosis as Diagnosis,
        Hypothesis as Hypothesis,
        Localizer as Localizer,
        LocalizerFactory as LocalizerFactory,
        SimpleLocalizer as SimpleLocalizer,
        Trainable as Trainable,
        get_localizer_registry as get_localizer_registry,
    )
    from agentguard.localize.embedded import EmbeddedLocalizer as EmbeddedLocalizer
    from agentguard.localize.llm.fused import FusedLocalizer as FusedLocalizer
    from agentguard.localize.recalibration import RecalibratedLocalizer as RecalibratedLocalizer
    from agentguard.localize.run_comparison import compare_runs as compare_runs
    from agentguard.localize.schema_similarity import SchemaLocalizer as SchemaLocalizer
    from agentguard.verdict import Verdict as Verdict

_EXPORTS = {
    "BaseLocalizer": "agentguard.localize.base",
    "Diagnosis": "agentguard.localize.base",
    "EmbeddedLocalizer": "agentguard.localize.embedded",
    "FusedLocalizer": "agentguard.localize.llm.fused",
    "Hypothesis": "agentguard.localize.base",
    "Localizer": "agentguard.localize.base",
    "LocalizerFactory": "agentguard.localize.base",
    "RecalibratedLocalizer": "agentguard.localize.recalibration",
    "SchemaLocalizer": "agentguard.localize.schema_similarity",
    "SimpleLocalizer": "agentguard.localize.base",
    "Trainable": "agentguard.localize.base",
    "Verdict": "agentguard.verdict",
    "compare_runs": "agentguard.localize.run_comparison",
    "get_localizer_registry": "agentguard.localize.base",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
