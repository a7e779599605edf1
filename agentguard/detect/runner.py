"""Run detectors over a run, live or recorded: the same objects, the same findings.

A detector that raises, overruns its deadline or yields something that is no valid finding becomes a
`DetectorFailure`; after three of these it is switched off for the rest of the run. Nothing a detector does
aborts the run or hides what the others found.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from agentguard.detect.base import (
    NO_REQUIREMENTS,
    Detector,
    DetectorFactory,
    DetectorFailure,
    Evidence,
    Finding,
    ProposedTurnDetector,
    RunRequirements,
    detectors,
)
from agentguard.detect.run_view import RunView
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.trajectory.model import Source, Step, Trajectory

DetectorSpecs = Mapping[str, Mapping[str, Any] | bool | None]

MAX_FAILURES = 3
MAX_FINDINGS_PER_STEP = 200
"""Findings one detector may yield for one step; what lies above is junk, and may be endless."""

DEFAULT_DEADLINE_S = 0.5

_ALL_SOURCES = tuple(Source)
_NO_FINDINGS: Iterable[Finding] = ()
"""The empty tuple is one object: what most detectors return for most steps costs one comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult:
    """What the detectors saw in a run.

    Attributes:
        findings: without duplicates, by step, the likeliest first within one.
        failures: detectors that could not do their work.
        seconds: wall time spent.
    """

    findings: tuple[Finding, ...]
    failures: tuple[DetectorFailure, ...]
    seconds: float


def build_detectors(
    specs: DetectorSpecs | None = None, *, available: RunRequirements | None = None
) -> list[Detector]:
    """Make fresh detectors for one run.

    Args:
        specs: detector name to its options; ``{}``, None or True for the defaults, False to leave it out.
            Only those named are made; None makes all that are registered, with their defaults.
        has: what a run has that has ended already; detectors that need more, and have their defaults, are
            left out.

    Raises:
        UnknownPlugin: no detector has that name.
        ConfigError: an option does not exist or is out of its range; names detector and option.
    """
    made: list[Detector] = []
    for name, factory, given in (
        _select_all_detectors(available) if specs is None else _select_detectors(specs, available)
    ):
        try:
            made.append(factory(**given) if given else factory())
        except AgentGuardError:
            raise
        except Exception as error:  # a third party's factory may raise anything on options it does not expect
            raise ConfigError(f"detector {name!r} cannot be made: {type(error).__name__}") from error
    return made


_DetectorSelection = Sequence[tuple[str, DetectorFactory, dict[str, Any]]]


def _select_detectors(specs: DetectorSpecs, available: RunRequirements | None) -> _DetectorSelection:
    known, chosen = detectors(), []
    for name, options in specs.items():
        factory = known.get(name)
        if options is False:
            continue
        given = {} if options is None else _parse_options(name, options)
        if (
            given
            or available is None
            or available.satisfies(getattr(factory, "requirements", NO_REQUIREMENTS))
        ):
            chosen.append((name, factory, given))
    return chosen


def _select_all_detectors(available: RunRequirements | None) -> _DetectorSelection:
    """All that are registered and have something to look for; found out anew once others are registered."""
    names = detectors().names()
    if available is not None and available.turns > _MAX_TURNS:
        available = RunRequirements(_MAX_TURNS, available.calls, available.results)
    if (names, available) not in _SELECTION_CACHE:
        if len(_SELECTION_CACHE) > 4 * _MAX_TURNS:
            _SELECTION_CACHE.clear()
        _SELECTION_CACHE[names, available] = _select_detectors(dict.fromkeys(names), available)
    return _SELECTION_CACHE[names, available]


_MAX_TURNS = 64
"""Turns of a run with which a detector has enough; no detector of ours needs as many."""

_SELECTION_CACHE: dict[tuple[tuple[str, ...], RunRequirements | None], _DetectorSelection] = {}


def _parse_options(name: str, options: Mapping[str, Any] | bool) -> dict[str, Any]:
    if options is True:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"detector {name!r}: options must be a mapping, or false to switch it off")
    return {str(key): value for key, value in options.items()}


class IncrementalRunner:
    """Watches one run, step by step.

    Args:
        view: the run before its first step.
        specs: as `build` takes them, or detectors already made.
        deadline_s: seconds one detector may take over one step; measured, and checked when it returns.
    """

    def __init__(
        self,
        view: RunView | None = None,
        specs: DetectorSpecs | Iterable[Detector] | None = None,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        if not deadline_s > 0:
            raise ConfigError("deadline_s must be above 0")
        self.view = view if view is not None else RunView()
        self.deadline_s = deadline_s
        self.failures: list[DetectorFailure] = []
        self._active_detectors = (
            build_detectors(specs) if specs is None or isinstance(specs, Mapping) else list(specs)
        )
        self._proposed_findings: list[tuple[Detector, tuple[Finding, ...]]] = []
        self._reset_selection()
        self._failure_counts: dict[int, int] = {}
        self._known_findings: set[tuple[object, ...]] = set()

    def observe(self, step: Step) -> tuple[Finding, ...]:
        """Take in one more step; return what is new. ``step.index`` must be the number of steps before it."""
        if step.index != len(self.view.steps):
            raise ValueError(f"step {step.index} given where step {len(self.view.steps)} was expected")
        view = self.view
        asked = self._detectors_for(step.source)
        foreseen = (
            view.append(step).was_proposed
            and len(self._proposed_findings) == self._proposal_plan_for(step.source).stateless_count
        )
        found: list[Finding] = []
        if foreseen:
            asked = self._proposal_plan_for(step.source).remaining_detectors
            for detector, before_tools in self._proposed_findings:
                if before_tools:
                    found += self._confirm_proposed(detector, step, before_tools)
        before = time.perf_counter()
        for detector in asked:
            try:
                yielded = detector.observe(step, view)
                if yielded is not _NO_FINDINGS and yielded != []:
                    found += self._select_new(yielded)
            except Exception as error:  # a detector may raise anything; the run and the other detectors go on
                self._record_failure(detector, step.index, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._record_failure(detector, step.index, _DeadlineExceeded(), after - before)
            before = after
        found.sort(key=_sort_key)
        return tuple(found)

    def check_proposed(self, step: Step) -> tuple[Finding, ...]:
        """What is wrong with a turn whose tool calls have not run yet; it may be refused, so nothing is kept.

        ``step.index`` must be the number of steps so far. What is found here is found again by `observe` if
        the turn is committed after all.
        """
        self.view.stage(step)
        self._proposed_findings = []
        found: list[Finding] = []
        before = time.perf_counter()
        for detector in self._proposal_plan_for(step.source).proposal_detectors:
            try:
                yielded = detector.check_proposed(step, self.view)
                here = tuple(islice(yielded, MAX_FINDINGS_PER_STEP)) if yielded is not _NO_FINDINGS else ()
                if getattr(detector, "is_stateless", False):
                    self._proposed_findings.append((detector, here))
                found += here
            except Exception as error:  # as in observe
                self._record_failure(detector, step.index, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._record_failure(detector, step.index, _DeadlineExceeded(), after - before)
            before = after
        found.sort(key=_sort_key)
        return tuple(one for one in found if isinstance(one, Finding) and one.step == step.index)

    def finish(self) -> tuple[Finding, ...]:
        """Say that the run has ended; return what is new. The deadline holds here too."""
        found: list[Finding] = []
        before = time.perf_counter()
        for detector in tuple(self._active_detectors):
            try:
                yielded = detector.finish(self.view)
                if yielded is not _NO_FINDINGS:
                    found += self._select_new(yielded)
            except Exception as error:  # as in observe
                self._record_failure(detector, None, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._record_failure(detector, None, _DeadlineExceeded(), after - before)
            before = after
        found.sort(key=_sort_key)
        return tuple(found)

    def _confirm_proposed(
        self, detector: Detector, step: Step, proposed: tuple[Finding, ...]
    ) -> list[Finding]:
        """What was foreseen, if it still holds: a tool may have changed its arguments in place."""
        try:
            return self._select_new(proposed)
        except _InvalidFinding:
            pass
        try:
            return self._select_new(detector.observe(step, self.view))
        except Exception as error:  # as in observe
            self._record_failure(detector, step.index, error, 0.0)
            return []

    def _select_new(self, yielded: Iterable[object]) -> list[Finding]:
        """The valid findings that were not seen before; those before a junk one are lost with it."""
        new: dict[tuple[object, ...], Finding] = {}
        for count, finding in enumerate(yielded):
            if count >= MAX_FINDINGS_PER_STEP:
                raise _InvalidFinding("yielded too many findings")
            if not isinstance(finding, Finding):
                raise _InvalidFinding(f"yielded {type(finding).__name__} instead of a Finding")
            problem = _find_problem(finding, self.view)
            if problem:
                raise _InvalidFinding(problem)
            key = _identity_key(finding)
            if key not in self._known_findings:
                new.setdefault(key, finding)
        self._known_findings.update(new)
        return list(new.values())

    def _record_failure(
        self, detector: Detector | ProposedTurnDetector, step: int | None, error: Exception, seconds: float
    ) -> None:
        name = getattr(detector, "name", type(detector).__name__)
        # The text of a foreign exception may quote the run: only its type is safe to log.
        reason = (
            str(error) if isinstance(error, (_InvalidFinding, _DeadlineExceeded)) else type(error).__name__
        )
        self.failures.append(DetectorFailure(detector=str(name), step=step, error=reason, seconds=seconds))
        self._failure_counts[id(detector)] = self._failure_counts.get(id(detector), 0) + 1
        if self._failure_counts[id(detector)] >= MAX_FAILURES:
            self._active_detectors = [one for one in self._active_detectors if one is not detector]
            self._reset_selection()

    def _reset_selection(self) -> None:
        """Forget which detectors a step of each source goes to; it is found out when one comes.

        Many runs are short, and have steps of two sources: this is done for each of them.
        """
        self._proposed_findings = []  # not cleared: a loop over it may be under way
        self._detectors_by_source: dict[Source, tuple[Any, ...]] = {}
        self._proposal_plans: dict[Source, _ProposalPlan] = {}

    def _detectors_for(self, source: Source) -> tuple[Any, ...]:
        """The detectors that a step of this source goes to: those that say so, or do not say."""
        known = self._detectors_by_source.get(source)
        if known is None:
            active = self._active_detectors
            known = tuple([d for d in active if source in getattr(d, "observed_sources", _ALL_SOURCES)])
            self._detectors_by_source[source] = known
        return known

    def _proposal_plan_for(self, source: Source) -> _ProposalPlan:
        """As `_watching`, of turns that are looked at before their tools run.

        What `ProposedTurnDetector` asks is asked by its name: isinstance takes a hundred times as long.
        """
        known = self._proposal_plans.get(source)
        if known is None:
            asked = self._detectors_for(source)
            can = tuple([d for d in asked if getattr(d, "check_proposed", None) is not None])
            spared = [id(d) for d in can if getattr(d, "is_stateless", False)]
            known = _ProposalPlan(can, tuple([d for d in asked if id(d) not in spared]), len(spared))
            self._proposal_plans[source] = known
        return known


class _ProposalPlan(NamedTuple):
    """Detectors of a turn that was looked at before its tools ran.

    Attributes:
        can: those that can look at it then.
        unspared: those that must be asked again once it has run; ``spared`` is the number of the others.
    """

    proposal_detectors: tuple[Any, ...]
    remaining_detectors: tuple[Any, ...]
    stateless_count: int


def detect(
    trajectory: Trajectory,
    specs: DetectorSpecs | Iterable[Detector] | None = None,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> DetectionResult:
    """Run detectors over a recorded run.

    Args:
        trajectory: the run.
        specs: as `build` takes them, or detectors already made for this run.
        deadline_s: seconds one detector may take over one step.

    Raises:
        UnknownPlugin, ConfigError: as `build` does.
    """
    start = time.perf_counter()
    if specs is None or isinstance(specs, Mapping):
        specs = build_detectors(specs, available=_available_data(trajectory.steps))
    watcher = IncrementalRunner(RunView.from_trajectory(trajectory), specs, deadline_s=deadline_s)
    found: list[Finding] = []
    for step in trajectory.steps:
        found += watcher.observe(step)
    found += watcher.finish()
    findings = tuple(sorted(found, key=_sort_key))
    return DetectionResult(
        findings=findings, failures=tuple(watcher.failures), seconds=time.perf_counter() - start
    )


def _available_data(steps: Sequence[Step]) -> RunRequirements:
    return RunRequirements(
        turns=sum([step.source is Source.AGENT for step in steps]),
        calls=any(step.tool_calls for step in steps),
        results=any(step.observations or step.source is Source.ENVIRONMENT for step in steps),
    )


class _InvalidFinding(Exception):
    """What a detector yielded is no valid finding."""


class _DeadlineExceeded(Exception):
    """A detector took longer than its deadline."""

    def __str__(self) -> str:
        return "deadline exceeded"


def _sort_key(finding: Finding) -> tuple[int, float, str]:
    return finding.step, -finding.probability, finding.detector


def _identity_key(finding: Finding) -> tuple[object, ...]:
    """Two findings with equal identity say the same of the same place."""
    first = finding.evidence[0] if finding.evidence else None
    return finding.detector, finding.step, finding.codes, first, None if first else finding.message


def _find_problem(finding: Finding, view: RunView) -> str | None:
    """What is wrong with a finding, or None; the text names no content of the run."""
    if not isinstance(finding.probability, (int, float)) or not 0 <= finding.probability <= 1:
        return "probability outside [0, 1]"
    if not isinstance(finding.step, int) or not 0 <= finding.step < len(view.steps):
        return "a step that is not in the run"
    if not all(isinstance(code, str) and ":" in code for code in finding.codes):
        return "a code without its taxonomy"
    if not all(_is_exact_quote(evidence, view) for evidence in finding.evidence):
        return "a quote that is not in the run"
    return None


def _is_exact_quote(evidence: Evidence, view: RunView) -> bool:
    if not 0 <= evidence.step < len(view.steps) or evidence.start < 0:
        return False
    text: str = view.steps[evidence.step].text(evidence.field)
    return bool(evidence.quote) and text[evidence.start : evidence.end] == evidence.quote
