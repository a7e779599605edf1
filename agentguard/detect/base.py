"""Did it fail: what a detector is, and what it finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from agentguard.plugins import Registry
from agentguard.trajectory.model import Step

if TYPE_CHECKING:
    from agentguard.detect.run_view import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A quote from the run: ``steps[step].text(field)[start:end] == quote``. Offsets count code points."""

    step: int
    field: str
    quote: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong that a detector saw.

    Attributes:
        detector: name of the detector.
        step: the step it is wrong in, from 0 (not always the step at which it was noticed).
        codes: qualified taxonomy codes, ``"<taxonomy>:<code>"``, the most specific first.
        probability: that this finding is true and mattered, in [0, 1].
        message: what is wrong, in a sentence for a person.
        evidence: quotes from the run, the telling one first.
        correction: what the agent should do instead, addressed to the agent.
        noticed_at: the step at which it could first be known; ``step`` where not given.
        data: further facts for programs, JSON-able.
    """

    detector: str
    step: int
    codes: tuple[str, ...]
    probability: float
    message: str
    evidence: tuple[Evidence, ...] = ()
    correction: str = ""
    noticed_at: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFailure:
    """A detector that raised or ran out of its deadline: a value, never an aborted run."""

    detector: str
    step: int | None
    error: str
    seconds: float = 0.0


class RunRequirements(NamedTuple):
    """What a run must have for a detector with its defaults to find anything in it; also what a run has.

    Attributes:
        turns: steps of agents; more than 64 are taken for 64, unless nothing is ever enough (`SILENT`).
        calls: whether a tool is called.
        results: whether anything comes back: observations, or steps of the environment.
    """

    turns: int = 0
    calls: bool = False
    results: bool = False

    def satisfies(self, requirements: RunRequirements) -> bool:
        """Whether a run that has this has what is needed."""
        turns, calls, results = requirements
        return self.turns >= turns and self.calls >= calls and self.results >= results


NO_REQUIREMENTS: Final = RunRequirements()
"""The needs of a detector that does not say any."""

NEVER_BY_DEFAULT: Final = RunRequirements(turns=1 << 62)
"""The needs of a detector that finds nothing unless it is given options."""


@runtime_checkable
class ProposedTurnDetector(Protocol):
    """A detector that can also judge a turn before its tool calls run; not every one can."""

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Look at a turn that may yet be refused; ``view`` ends before it, and nothing may be remembered."""
        ...


@runtime_checkable
class Detector(Protocol):
    """One object watches one run, live or recorded; work per step does not grow with the steps before it.

    A detector is made anew for each run by its factory: ``factory(**options) -> Detector``. Options are
    validated by the factory, which raises ConfigError.
    """

    name: str

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Look at one more step; ``view`` has all steps up to and including it."""
        ...

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Look at the run once it has ended."""
        ...


class DetectorFactory(Protocol):
    """Makes a detector for one run from its options."""

    def __call__(self, **options: Any) -> Detector:
        """Raise ConfigError on an option that does not exist or is out of its range."""
        ...


def detectors() -> Registry[DetectorFactory]:
    """The registry of detectors: those in ``agentguard.detect.rules`` and installed ones."""
    return _REGISTRY


def _load_builtin() -> dict[str, str]:
    from agentguard.detect.rules import BUILTIN_DETECTORS

    return dict(BUILTIN_DETECTORS)


_REGISTRY: Registry[DetectorFactory] = Registry(
    "detector", group="agentguard.detectors", builtin=_load_builtin()
)
