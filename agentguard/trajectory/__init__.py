"""Trajectories: recorded runs, their labels, the event log and redaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.trajectory.event_log.log_file import EventLog, read_log, write_log
    from agentguard.trajectory.event_log.recorder import RunRecorder
    from agentguard.trajectory.model import (
        Annotation,
        Branch,
        Module,
        Observation,
        Record,
        RootCause,
        Source,
        Step,
        ToolCall,
        ToolSpec,
        Trajectory,
        Usage,
    )
    from agentguard.trajectory.redaction import RedactionResult, Redactor

_EXPORTS = {
    "Annotation": "agentguard.trajectory.model",
    "Branch": "agentguard.trajectory.model",
    "EventLog": "agentguard.trajectory.event_log.log_file",
    "Module": "agentguard.trajectory.model",
    "Observation": "agentguard.trajectory.model",
    "Record": "agentguard.trajectory.model",
    "RedactionResult": "agentguard.trajectory.redaction",
    "Redactor": "agentguard.trajectory.redaction",
    "RootCause": "agentguard.trajectory.model",
    "RunRecorder": "agentguard.trajectory.event_log.recorder",
    "Source": "agentguard.trajectory.model",
    "Step": "agentguard.trajectory.model",
    "ToolCall": "agentguard.trajectory.model",
    "ToolSpec": "agentguard.trajectory.model",
    "Trajectory": "agentguard.trajectory.model",
    "Usage": "agentguard.trajectory.model",
    "read_log": "agentguard.trajectory.event_log.log_file",
    "write_log": "agentguard.trajectory.event_log.log_file",
}

__all__ = [
    "Annotation",
    "Branch",
    "EventLog",
    "Module",
    "Observation",
    "Record",
    "RedactionResult",
    "Redactor",
    "RootCause",
    "RunRecorder",
    "Source",
    "Step",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "Usage",
    "read_log",
    "write_log",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
