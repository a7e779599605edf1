"""Content of a finished run, from which detectors derive that they cannot find anything in it."""

from __future__ import annotations

from collections.abc import Iterable

from agentguard.detect._text import to_lower
from agentguard.detect.base import RunRequirements
from agentguard.trajectory.model import Source, Trajectory


class RunContent:
    """Content of a finished run, shared by all detectors.

    Attributes:
        run: the run.
        data: data of the run, for comparison with `Detector.requirements`.
        lower_text: contents of all turns of the agents, joined by newlines, in lower case.
    """

    __slots__ = ("data", "lower_text", "run")

    def __init__(self, run: Trajectory) -> None:
        self.run = run
        texts: list[str] = []
        has_calls = has_results = False
        for step in run.steps:
            if step.source is Source.AGENT:
                texts.append(step.content)
            has_calls = has_calls or bool(step.tool_calls)
            has_results = has_results or bool(step.observations) or step.source is Source.ENVIRONMENT
        self.data = RunRequirements(turns=len(texts), calls=has_calls, results=has_results)
        self.lower_text = to_lower("\n".join(texts))

    def has_cue(self, cues: Iterable[str]) -> bool:
        """Return True if a turn of an agent contains one of the lower-case texts."""
        return any(map(self.lower_text.__contains__, cues))
