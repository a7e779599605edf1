"""Names of agentguard's own span attributes, which preserve a run without loss.

The exporter (`agentguard.otlp.span_builder`) and the importer share only these names.
"""

from __future__ import annotations

from typing import Final

RUN_ID: Final = "agentguard.run.id"
"""Id of the run, on the root span."""
BRANCH: Final = "agentguard.line"
"""Id of the branch, on the spans of an abandoned branch; spans of the current branch do not have it."""
EXIT_STATUS: Final = "agentguard.run.exit_status"
UNKNOWN_PARTS: Final = "agentguard.unknown_parts"
"""JSON of the unknown parts: type to number on the root span, a list of types on the span of a step."""
CONTENT_RECORDED: Final = "agentguard.run.content_recorded"
"""False on the root span of a run whose source had no message content."""
STEP: Final = "agentguard.step.index"
SOURCE: Final = "agentguard.step.source"
TIMES: Final = "agentguard.times"
"""Recorded times of a step: ``both``, ``start``, ``end`` or ``none``; the other times are generated."""
OBSERVATION: Final = "agentguard.observation"
"""Index of the observation in its step, on the span of a tool."""
UNPAIRED: Final = "agentguard.observation.unpaired"
"""Missing reference of an observation, on a tool's span: ``call``, ``tool`` or ``both``."""
FORK_STEP: Final = "agentguard.branch.fork_step"
PARENT: Final = "agentguard.branch.parent"
REASON: Final = "agentguard.branch.reason"
