"""Find the step that made an LLM agent fail, while it runs or after it.

>>> import agentguard
>>> run = agentguard.load_trajectory("samples/13-pepper-and-potato.json")  # doctest: +SKIP
>>> agentguard.diagnose(run).verdict  # doctest: +SKIP
<Verdict.FAILED: 'failed'>

Names are loaded when they are first used, so that importing agentguard stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports
from agentguard.version import __version__

if TYPE_CHECKING:
    from agentguard.detect.base import Evidence, Finding
    from agentguard.errors import AgentGuardError
    from agentguard.evals.evaluate import evaluate
    from agentguard.guard import Guard, diagnose
    from agentguard.localize.base import Diagnosis, Hypothesis
    from agentguard.trajectory.formats.reader import load_records, load_trajectory, read
    from agentguard.trajectory.model import Annotation, Record, Step, Trajectory
    from agentguard.verdict import Verdict

_EXPORTS = {
    "AgentGuardError": "agentguard.errors",
    "Annotation": "agentguard.trajectory.model",
    "Diagnosis": "agentguard.localize.base",
    "Evidence": "agentguard.detect.base",
    "Finding": "agentguard.detect.base",
    "Guard": "agentguard.guard",
    "Hypothesis": "agentguard.localize.base",
    "Record": "agentguard.trajectory.model",
    "Step": "agentguard.trajectory.model",
    "Trajectory": "agentguard.trajectory.model",
    "Verdict": "agentguard.verdict",
    "diagnose": "agentguard.guard",
    "evaluate": "agentguard.evals.evaluate",
    "load_records": "agentguard.trajectory.formats.reader",
    "load_trajectory": "agentguard.trajectory.formats.reader",
    "read": "agentguard.trajectory.formats.reader",
}

__all__ = [
    "AgentGuardError",
    "Annotation",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Guard",
    "Hypothesis",
    "Record",
    "Step",
    "Trajectory",
    "Verdict",
    "__version__",
    "diagnose",
    "evaluate",
    "load_records",
    "load_trajectory",
    "read",
]


__getattr__, _ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
