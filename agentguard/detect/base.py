"""Findings, and the interface, base class and plug-in adapter of detectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, runtime_checkable

from agentguard.errors import ConfigError
from agentguard.options import Options, parse_options
from agentguard.plugins import Registry
from agentguard.trajectory.model import Source, Step

if TYPE_CHECKING:
    from agentguard.detect.run_content import RunContent
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
    """Failure in a run that a detector reports.

    Attributes:
        detector: name of the detector.
        step: index of the faulty step, from 0; the detector may notice the failure at a later step.
        codes: qualified taxonomy codes, ``"<taxonomy>:<code>"``, the most specific first.
        probability: probability in [0, 1] that the finding is true and contributed to the outcome of the run.
        message: description of the failure, one sentence for a person.
        evidence: quotes from the run, the most important one first.
        correction: instruction to the agent that avoids the failure.
        noticed_at: index of the first step at which the failure can be noticed; None means ``step``.
        recovered_after: index of the step that repaired the failure; None without such a step, or if the run
            continues. A repaired failure is not a root cause.
        data: further facts for programs, as JSON data.
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


def most_severe(findings: Sequence[Finding], threshold: float) -> Finding | None:
    """Return the finding with the highest probability, if it is at or above the threshold; otherwise None."""
    likely = [finding for finding in findings if finding.probability >= threshold]
    return max(likely, key=lambda finding: finding.probability, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFailure:
    """Error or exceeded deadline of a detector; ``step`` is None at the end of the run."""

    detector: str
    step: int | None
    error: str
    seconds: float = 0.0


class RunRequirements(NamedTuple):
    """Data that a detector needs in a run to find anything with default options; also the data of a run.

    Attributes:
        turns: number of agent steps; a count above 64 is treated as 64.
        calls: whether an agent calls a tool.
        results: whether the run has observations or steps of the environment.
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
"""Requirements of a detector without findings with default options; no run satisfies them."""


@runtime_checkable
class SimpleDetector(Protocol):
    """Minimal plug-in detector; `adapt_detector` completes it to a `Detector`."""

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
        """Sources of the steps that the runner passes to `observe`."""
        ...

    @property
    def checks_proposed(self) -> bool:
        """True if the runner calls `check_proposed`."""
        ...

    @property
    def is_stateless(self) -> bool:
        """True if `observe` yields the findings of `check_proposed` and stores nothing.

        The runner then does not call `observe` for a turn after `check_proposed`. Such a detector reads the
        text and the calls of the turn, but not the tool results.
        """
        ...

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Yield the findings of the latest step; ``view`` has all steps up to and including it."""
        ...

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Yield the findings of a turn before its tool calls run.

        ``view`` ends before the turn. The guard may reject the turn, so the detector must not store anything.
        """
        ...

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Yield the findings of the finished run."""
        ...


NO_FINDINGS: tuple[Finding, ...] = ()


class BaseDetector:
    """Base of the built-in detectors, with the defaults of `Detector`; a plug-in need not derive from it.

    Attributes:
        name: name of the detector.
        summary: failures that it finds, in one sentence; the docs contain the same text.
        codes: qualified taxonomy codes of its findings, the most specific first.
        default_options: its options with their defaults.
        options: the options of this detector.
        is_stateless: see `Detector.is_stateless`.
        requirements: see `Detector.requirements`; `agentguard.detect.runner.build_detectors` omits a detector
            with default options if a recorded run does not have that data.
        observed_sources: see `Detector.observed_sources`; empty for a detector without anything to check.
        checks_proposed: see `Detector.checks_proposed`; true in a subclass that overrides `check_proposed`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    codes: ClassVar[tuple[str, ...]] = ()
    default_options: ClassVar[Options] = Options()
    is_stateless: ClassVar[bool] = False
    requirements: ClassVar[RunRequirements] = NO_REQUIREMENTS
    observed_sources: Collection[Source] = (Source.AGENT,)
    checks_proposed: ClassVar[bool] = False
    options: Options

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.checks_proposed = cls.check_proposed is not BaseDetector.check_proposed

    def __init__(self, **options: Any) -> None:
        defaults = self.default_options
        self.options = parse_options(defaults, options, f"detector {self.name}") if options else defaults

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return False if the detector with default options has no finding for a finished run.

        The runner omits such a detector. The method may return True for a run without findings.
        """
        del content
        return True

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Return no findings; see `Detector.observe`."""
        del step, view
        return NO_FINDINGS

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Return no findings; see `Detector.check_proposed`."""
        del step, view
        return NO_FINDINGS

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Return no findings; see `Detector.finish`."""
        del view
        return NO_FINDINGS

    def build_option_error(self, option: str, problem: str) -> ConfigError:
        """Return the error for an invalid value of an option; its text names the detector and the option."""
        return ConfigError(f"detector {self.name}.{option}: {problem}")

    def build_finding(
        self,
        step: Step,
        probability: float,
        message: str,
        *,
        correction: str,
        evidence: tuple[Evidence, ...] = (),
        **details: Any,
    ) -> Finding:
        """Build a finding.

        ``details`` may contain ``codes`` and ``noticed_at``; the other details become its ``data``.
        """
        return Finding(
            detector=self.name,
            step=step.index,
            codes=details.pop("codes", self.codes),
            probability=probability,
            message=message,
            evidence=evidence,
            correction=correction,
            noticed_at=details.pop("noticed_at", step.index),
            data=details,
        )


class DetectorFactory(Protocol):
    """Factory that builds a detector for one run from options."""

    def __call__(self, **options: Any) -> Detector | SimpleDetector:
        """Build a detector. Raises ConfigError if an option is unknown or out of range."""
        ...


_ALL_SOURCES = tuple(Source)


class DetectorAdapter:
    """Adapter from a plug-in with at least ``name``, ``observe`` and ``finish`` to `Detector`.

    Defaults: the plug-in observes steps of all sources, has no requirements and checks no proposed turns.
    A plug-in may have any of the optional members of `Detector`.
    """

    def __init__(self, detector: SimpleDetector) -> None:
        self.detector = detector
        self.name = str(getattr(detector, "name", type(detector).__name__))
        self.requirements: RunRequirements = getattr(detector, "requirements", NO_REQUIREMENTS)
        self.observed_sources: Collection[Source] = getattr(detector, "observed_sources", _ALL_SOURCES)
        self.is_stateless: bool = getattr(detector, "is_stateless", False)
        self._check_proposed = getattr(detector, "check_proposed", None)
        self.checks_proposed = self._check_proposed is not None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Call ``observe`` of the plug-in."""
        return self.detector.observe(step, view)

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Call ``check_proposed`` of the plug-in; return no findings if it does not have one."""
        return NO_FINDINGS if self._check_proposed is None else self._check_proposed(step, view)

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Call ``finish`` of the plug-in."""
        return self.detector.finish(view)


def adapt_detector(detector: Detector | SimpleDetector) -> Detector:
    """Return a detector with all members of `Detector`: ``detector``, or an adapter around it."""
    if isinstance(detector, BaseDetector):  # a separate check: one with a union of types takes longer
        return detector
    return detector if isinstance(detector, DetectorAdapter) else DetectorAdapter(detector)


def read_requirements(factory: DetectorFactory) -> RunRequirements:
    """Return the requirements that a factory declares; a function does not declare any."""
    requirements: RunRequirements = getattr(factory, "requirements", NO_REQUIREMENTS)
    return requirements


def can_find(factory: DetectorFactory, content: RunContent) -> bool:
    """Return False if a factory declares that its detectors find nothing in a run."""
    check: Callable[[RunContent], bool] | None = getattr(factory, "can_find", None)
    return check is None or check(content)


def detectors() -> Registry[DetectorFactory]:
    """Return the registry of detectors: the built-in ones and the installed plug-ins."""
    return _REGISTRY


def _load_builtin() -> dict[str, str]:
    from agentguard.detect.rules import BUILTIN_DETECTORS

    return dict(BUILTIN_DETECTORS)


_REGISTRY: Registry[DetectorFactory] = Registry(
    "detector", group="agentguard.detectors", builtin=_load_builtin()
)
