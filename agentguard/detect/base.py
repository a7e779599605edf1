"""Interface of detectors, and the findings that they return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from agentguard.plugins import Registry
from agentguard.trajectory.model import Source, Step

if TYPE_CHECKING:
    from agentguard.detect.run_view import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Quote from the run: ``steps[step].text(field)[start:end] == quote``. Offsets count code points."""

    step: int
    field: str
    quote: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Fault of a run, as reported by a detector.

    Attributes:
        detector: name of the detector.
        step: index of the faulty step, from 0; the detector may notice the fault at a later step.
        codes: qualified taxonomy codes, ``"<taxonomy>:<code>"``, the most specific first.
        probability: probability in [0, 1] that this finding is true and mattered.
        message: the fault, in one sentence for a person.
        evidence: quotes from the run, the most important one first.
        correction: instruction to the agent that avoids the fault.
        noticed_at: the first step at which the fault could be noticed; None means ``step``.
        recovered_after: the step that repaired the fault; None if no step did, or if the run goes on. A
            repaired fault is not a root cause.
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
    recovered_after: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFailure:
    """Error or exceeded deadline of a detector; the run continues."""

    detector: str
    step: int | None
    error: str
    seconds: float = 0.0


class RunRequirements(NamedTuple):
    """Data that a detector needs in a run to find anything with default options; also the data of a run.

    Attributes:
        turns: number of agent steps; a count above 64 is treated as 64.
        calls: True if an agent calls a tool.
        results: True if there are observations or steps of the environment.
    """

    turns: int = 0
    calls: bool = False
    results: bool = False

    def satisfies(self, requirements: RunRequirements) -> bool:
        """Return True if a run with this data meets ``requirements``."""
        turns, calls, results = requirements
        return self.turns >= turns and self.calls >= calls and self.results >= results


NO_REQUIREMENTS: Final = RunRequirements()
"""Requirements of a detector that does not declare any."""

NEVER_BY_DEFAULT: Final = RunRequirements(turns=1 << 62)
"""Requirements of a detector that finds nothing with default options; no run satisfies them."""


@runtime_checkable
class SimpleDetector(Protocol):
    """Minimal plug-in detector; `agentguard.detect.adapter` completes it to a `Detector`."""

    @property
    def name(self) -> str:
        """Name of the detector."""
        ...

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Yield the findings of the latest step; ``view`` has all steps up to and including it."""
        ...

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Yield the findings of the finished run."""
        ...


@runtime_checkable
class Detector(Protocol):
    """Detector of one run, live or recorded; its work per step does not grow with the number of steps.

    A factory builds a new detector for each run: ``factory(**options) -> Detector``. The factory validates
    the options and raises ConfigError. `BaseDetector` has defaults for all members but ``name``.
    """

    @property
    def name(self) -> str:
        """Name of the detector."""
        ...

    @property
    def requirements(self) -> RunRequirements:
        """Data that a run must have for a finding of this detector with default options."""
        ...

    @property
    def observed_sources(self) -> Collection[Source]:
        """Sources of the steps that `observe` is called for; the runner passes no other step."""
        ...

    @property
    def checks_proposed(self) -> bool:
        """True if `check_proposed` can find anything; the runner does not call it otherwise."""
        ...

    @property
    def is_stateless(self) -> bool:
        """True if `observe` finds the same as `check_proposed` and stores nothing.

        The runner does not call `observe` again for a turn that `check_proposed` has seen. Such a detector
        reads the text and the calls of the turn, and no tool result.
        """
        ...

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Yield the findings of the latest step; ``view`` has all steps up to and including it."""
        ...

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Yield the findings of a turn before its tool calls run.

        ``view`` ends before the turn. The turn may be refused, so the detector must not store anything.
        """
        ...

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Yield the findings of the finished run."""
        ...


class DetectorFactory(Protocol):
    """Factory that builds a detector for one run from options."""

    def __call__(self, **options: Any) -> Detector | SimpleDetector:
        """Build a detector; raise ConfigError if an option does not exist or is out of range."""
        ...


def detectors() -> Registry[DetectorFactory]:
    """Return the registry of detectors: the built-in ones and the installed plug-ins."""
    return _REGISTRY


def _load_builtin() -> dict[str, str]:
    from agentguard.detect.rules import BUILTIN_DETECTORS

    return dict(BUILTIN_DETECTORS)


_REGISTRY: Registry[DetectorFactory] = Registry(
    "detector", group="agentguard.detectors", builtin=_load_builtin()
)
