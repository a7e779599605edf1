"""The attributes of our own that let a run be read back as it was: who writes spans and who reads them share
these names and nothing else."""

from __future__ import annotations

from typing import Final

RUN_ID: Final = "agentguard.run.id"
"""On the root span: the id of the run."""
BRANCH: Final = "agentguard.line"
"""On the spans of a line that was left: the id of the branch; the live line has none."""
STEP: Final = "agentguard.step.index"
SOURCE: Final = "agentguard.step.source"
TIMES: Final = "agentguard.times"
"""Which of a step's times were recorded: ``both``, ``start``, ``end`` or ``none``; the others are made up."""
OBSERVATION: Final = "agentguard.observation"
"""On a tool's span: its place among the observations of its step."""
UNPAIRED: Final = "agentguard.observation.unpaired"
"""On a tool's span: the observation names no call (``call``), no tool (``tool``) or neither (``both``)."""
FORK_STEP: Final = "agentguard.branch.fork_step"
PARENT: Final = "agentguard.branch.parent"
REASON: Final = "agentguard.branch.reason"
