"""Trajectories: recorded runs, their labels, the event log and redaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.trajectory.event_log.recorder import (
        EventLog as EventLog,
    )
    from agentguard.trajectory.event_log.recorder import (
        RunRecorder as RunRecorder,
    )
    from agentguard.trajectory.event_log.recorder import (
        read_log as read_log,
    )
    from agentguard.trajectory.event_log.recorder import (
        write_log as write_log,
    )
    from agentguard.trajectory.model import (
        Annotation as Annotation,
    )
    from agentguard.trajectory.model import (
        Branch as Branch,
    )
    from agentguard.trajectory.model import (
        Module as Module,
    )
    from agentguard.trajectory.model import (
        Observation as Observation,
    )
    from agentguard.trajectory.model import (
        Record as Record,
    )
    from agentguard.trajectory.model import (
        RootCause as RootCause,
    )
    from agentguard.trajectory.model import (
        Source as Source,
    )
    from agentguard.trajectory.model import (
        Step as Step,
    )
    from agentguard.trajectory.model import (
        ToolCall as ToolCall,
    )
    from agentguard.trajectory.model import (
        ToolSpec as ToolSpec,
    )
    from agentguard.trajectory.model import (
        Trajectory as Trajectory,
    )
    from agentguard.trajectory.model import (
        Usage as Usage,
    )
    from agentguard.trajectory.redaction import RedactionResult as RedactionResult
    from agentguard.trajectory.redaction import Redactor as Redactor

_EXPORTS = {
    "Annotation": "agentguard.trajectory.model",
    "Branch": "agentguard.trajectory.model",
    "EventLog": "agentguard.trajectory.event_log.recorder",
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
    "read_log": "agentguard.trajectory.event_log.recorder",
    "write_log": "agentguard.trajectory.event_log.recorder",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
