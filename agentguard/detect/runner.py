"""Runner of detectors over a live or recorded run; both yield the same findings.

A detector fails if it raises, exceeds its deadline or yields an invalid finding. The runner records a
`DetectorFailure`. After three failures it disables the detector for the rest of the run. A failure neither
aborts the run nor hides the findings of other detectors.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from agentguard.detect.base import (
    BaseDetector,
    Detector,
    DetectorFactory,
    DetectorFailure,
    Evidence,
    Finding,
    RunRequirements,
    SimpleDetector,
    adapt_detector,
    can_find,
    detectors,
    read_requirements,
)
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.trajectory.model import Source, Step, Trajectory

DetectorSpecs = Mapping[str, Mapping[str, Any] | bool | None]

MAX_FAILURES = 3
MAX_FINDINGS_PER_STEP = 200
"""Maximum number of findings of a detector for one step; an iterator of a faulty detector may be endless."""

DEFAULT_DEADLINE_S = 0.5

_NO_FINDINGS: Iterable[Finding] = ()
"""The empty tuple is a singleton, so the usual return value of a detector costs one comparison."""


def build_detectors(specs: DetectorSpecs | None = None, *, run: Trajectory | None = None) -> list[Detector]:
    """Build new detectors for one run.

    Args:
        specs: options by the name of the detector. ``{}``, None or True means the defaults; False omits the
            detector. Only detectors in ``specs`` are built. None builds all registered detectors with default
            options, except those without findings by default.
        run: a finished run. Detectors with default options and without findings in it are omitted.

    Raises:
        UnknownPlugin: no detector has the name.
        ConfigError: an option is unknown or out of range; the text names the detector and the option.
    """
    content = None if run is None else RunContent(run)
    return [
        _build_detector(name, factory, options)
        for name, factory, options in _select_detectors(specs, None if content is None else content.data)
        if options or content is None or can_find(factory, content)
    ]


def _build_detector(name: str, factory: DetectorFactory, options: dict[str, Any]) -> Detector:
    try:
        return adapt_detector(factory(**options))
    except AgentGuardError:
        raise
    except Exception as error:  # the factory of a plug-in may raise any error on an unexpected option
        raise ConfigError(f"detector {name!r} cannot be built: {type(error).__name__}") from error


_DetectorSelection = Sequence[tuple[str, DetectorFactory, dict[str, Any]]]


def _select_detectors(specs: DetectorSpecs | None, available: RunRequirements | None) -> _DetectorSelection:
    """Select the detectors of the specs whose requirements are met; the selection for None is cached."""
    registry = detectors()
    if specs is None:
        available = available or _ANY_DATA
        if available.turns > _MAX_TURNS:
            available = RunRequirements(_MAX_TURNS, available.calls, available.results)
        key = registry.change_count, available
        if key not in _SELECTION_CACHE:
            if len(_SELECTION_CACHE) > 4 * _MAX_TURNS:
                _SELECTION_CACHE.clear()
            _SELECTION_CACHE[key] = _select_detectors(dict.fromkeys(registry.names()), available)
        return _SELECTION_CACHE[key]
    selection = []
    for name, value in specs.items():
        factory = registry.get(name)
        if value is False:
            continue
        options = {} if value is None else _parse_options(name, value)
        if options or available is None or available.satisfies(read_requirements(factory)):
            selection.append((name, factory, options))
    return selection


_MAX_TURNS = 64
"""Cap of the turn count in a cache key; every built-in detector needs fewer turns."""

_ANY_DATA = RunRequirements(turns=_MAX_TURNS, calls=True, results=True)
"""Data of a run that continues, which may still get calls and results."""

_SELECTION_CACHE: dict[tuple[int, RunRequirements], _DetectorSelection] = {}


def _parse_options(name: str, options: Mapping[str, Any] | bool) -> dict[str, Any]:
    if options is True:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"detector {name!r}: options must be a mapping, or false to disable it")
    return {str(key): value for key, value in options.items()}


def _select_live_detectors(specs: DetectorSpecs | None) -> list[Detector | type[BaseDetector]]:
    """Return the detectors of a live run; an entry that is a class is built at its first step."""
    return [
        factory
        if not options and isinstance(factory, type) and issubclass(factory, BaseDetector)
        else _build_detector(name, factory, options)
        for name, factory, options in _select_detectors(specs, None)
    ]


class IncrementalRunner:
    """Runner of detectors over one run, step by step.

    It builds a detector with default options at the first step that the detector observes.

    Args:
        view: view of the run before its first step.
        specs: specs for `build_detectors`, or built detectors.
        deadline_s: maximum time of a detector for a step, in seconds. The runner checks it when the detector
            returns; it does not interrupt the detector.
    """

    def __init__(
        self,
        view: RunView | None = None,
        specs: DetectorSpecs | Iterable[Detector | SimpleDetector] | None = None,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        check_deadline(deadline_s)
        self.view = view if view is not None else RunView()
        self.deadline_s = deadline_s
        self.failures: list[DetectorFailure] = []
        self._active_detectors: list[Detector | type[BaseDetector]] = (
            _select_live_detectors(specs)
            if specs is None or isinstance(specs, Mapping)
            else [adapt_detector(detector) for detector in specs]
        )
        self._proposed_findings: list[tuple[Detector, tuple[Finding, ...]]] = []
        self._reset_selection()
        self._failure_counts: dict[int, int] = {}
        self._known_findings: set[tuple[object, ...]] = set()

    @classmethod
    def for_run(
        cls,
        run: Trajectory,
        specs: DetectorSpecs | Iterable[Detector | SimpleDetector] | None,
        *,
        deadline_s: float,
    ) -> IncrementalRunner:
        """Return a runner for a run; it has not observed the steps of the run."""
        return cls(RunView.from_trajectory(run), specs, deadline_s=deadline_s)

    def observe(self, step: Step) -> tuple[Finding, ...]:
        """Append a step; return the new findings. ``step.index`` must be the number of steps before it."""
        if step.index != len(self.view.steps):
            raise ValueError(f"expected step {len(self.view.steps)}, got step {step.index}")
        view = self.view
        was_checked = view.append(step).was_proposed and self._has_checked_all(step.source)
        to_call = self._list_detectors(step.source, skips_checked=was_checked)
        findings: list[Finding] = []
        if was_checked:
            for detector, proposed in self._proposed_findings:
                if proposed:
                    findings += self._confirm_proposed(detector, step, proposed)
        before = time.perf_counter()
        for detector in to_call:
            try:
                yielded = detector.observe(step, view)
                if yielded is not _NO_FINDINGS and yielded != []:
                    findings += self._select_new(yielded)
            except Exception as error:  # any error; the run and the other detectors continue
                self._record_failure(detector, step.index, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._record_failure(detector, step.index, _DeadlineExceeded(), after - before)
            before = after
        findings.sort(key=get_sort_key)
        return tuple(findings)

    def check_proposed(self, step: Step) -> tuple[Finding, ...]:
        """Return the findings of a turn before its tool calls run; the guard may reject the turn.

        ``step.index`` must be the number of steps so far. If the guard commits the turn, `observe` returns
        these findings again.
        """
        self.view.stage(step)
        self._proposed_findings = []
        findings: list[Finding] = []
        before = time.perf_counter()
        for detector in self._list_proposal_detectors(step.source):
            try:
                yielded = detector.check_proposed(step, self.view)
                proposed = (
                    tuple(islice(yielded, MAX_FINDINGS_PER_STEP)) if yielded is not _NO_FINDINGS else ()
                )
                if detector.is_stateless:
                    self._proposed_findings.append((detector, proposed))
                findings += proposed
            except Exception as error:  # any error, as in `observe`
                self._record_failure(detector, step.index, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._record_failure(detector, step.index, _DeadlineExceeded(), after - before)
            before = after
        findings.sort(key=get_sort_key)
        return tuple(
            finding for finding in findings if isinstance(finding, Finding) and finding.step == step.index
        )

    def finish(self) -> tuple[Finding, ...]:
        """Finish the run; return the new findings. The deadline applies here too."""
        findings: list[Finding] = []
        before = time.perf_counter()
        for detector in [self._build(place) for place in range(len(self._active_detectors))]:
            try:
                yielded = detector.finish(self.view)
                if yielded is not _NO_FINDINGS:
                    findings += self._select_new(yielded)
            except Exception as error:  # any error, as in `observe`
                self._record_failure(detector, None, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._record_failure(detector, None, _DeadlineExceeded(), after - before)
            before = after
        findings.sort(key=get_sort_key)
        return tuple(findings)

    def _confirm_proposed(
        self, detector: Detector, step: Step, proposed: tuple[Finding, ...]
    ) -> list[Finding]:
        """Return the findings of the proposed turn, or new ones if a tool changed its arguments."""
        try:
            return self._select_new(proposed)
        except _InvalidFinding:
            pass
        try:
            return self._select_new(detector.observe(step, self.view))
        except Exception as error:  # any error, as in `observe`
            self._record_failure(detector, step.index, error, 0.0)
            return []

    def _select_new(self, yielded: Iterable[object]) -> list[Finding]:
        """Return the findings that are new; raise `_InvalidFinding` at the first invalid one."""
        new: dict[tuple[object, ...], Finding] = {}
        for count, finding in enumerate(yielded):
            if count >= MAX_FINDINGS_PER_STEP:
                raise _InvalidFinding("yielded too many findings")
            if not isinstance(finding, Finding):
                raise _InvalidFinding(f"yielded {type(finding).__name__} instead of a Finding")
            problem = _find_problem(finding, self.view)
            if problem:
                raise _InvalidFinding(problem)
            key = _build_identity_key(finding)
            if key not in self._known_findings:
                new.setdefault(key, finding)
        self._known_findings.update(new)
        return list(new.values())

    def _record_failure(self, detector: Detector, step: int | None, error: Exception, seconds: float) -> None:
        # The text of an unknown exception may quote the run, so only its type is safe to log.
        reason = (
            str(error) if isinstance(error, (_InvalidFinding, _DeadlineExceeded)) else type(error).__name__
        )
        failure = DetectorFailure(detector=detector.name, step=step, error=reason, seconds=seconds)
        self.failures.append(failure)
        self._failure_counts[id(detector)] = self._failure_counts.get(id(detector), 0) + 1
        if self._failure_counts[id(detector)] >= MAX_FAILURES:
            self._active_detectors = [other for other in self._active_detectors if other is not detector]
            self._reset_selection()

    def _reset_selection(self) -> None:
        """Clear the cache of detectors per source; the cache is filled at the first step of a source.

        Most runs are short and have steps of two sources; a cache for all sources would cost more.
        """
        self._proposed_findings = []  # a new list, because a caller may iterate over the old one
        self._detectors_by_source: dict[tuple[Source, bool], tuple[Detector, ...]] = {}
        self._proposal_detectors: dict[Source, Sequence[Detector]] = {}

    def _list_detectors(self, source: Source, *, skips_checked: bool) -> tuple[Detector, ...]:
        """Return the active detectors that observe steps of this source.

        With ``skips_checked``, omit the stateless ones that have checked the proposed turn.
        """
        cached = self._detectors_by_source.get((source, skips_checked))
        if cached is None:
            skipped = [
                one for one in self._list_proposal_detectors(source) if skips_checked and one.is_stateless
            ]
            observing = self._build_for(source, only_checking=False)
            cached = self._detectors_by_source[source, skips_checked] = tuple(
                [one for one in observing if one not in skipped]
            )
        return cached

    def _list_proposal_detectors(self, source: Source) -> Sequence[Detector]:
        """Return the active detectors that check proposed turns of this source."""
        cached = self._proposal_detectors.get(source)
        if cached is None:
            cached = self._proposal_detectors[source] = self._build_for(source, only_checking=True)
        return cached

    def _has_checked_all(self, source: Source) -> bool:
        """Return whether all stateless detectors have checked the proposed turn."""
        stateless = [one for one in self._list_proposal_detectors(source) if one.is_stateless]
        return len(self._proposed_findings) == len(stateless)

    def _build_for(self, source: Source, *, only_checking: bool) -> list[Detector]:
        """Build the detectors that observe a source, or those of them that check proposed turns."""
        found: list[Detector] = []
        for place, one in enumerate(self._active_detectors):
            if source in one.observed_sources and (one.checks_proposed or not only_checking):
                built = self._build(place)
                if source in built.observed_sources:  # without options, it may have nothing to observe
                    found.append(built)
        return found

    def _build(self, place: int) -> Detector:
        one = self._active_detectors[place]
        if isinstance(one, type):
            one = self._active_detectors[place] = one()
        return one


def check_deadline(deadline_s: float) -> None:
    """Raise ConfigError if a deadline is not positive."""
    if not deadline_s > 0:
        raise ConfigError("deadline_s must be positive")


class _InvalidFinding(Exception):
    """Invalid finding of a detector."""


class _DeadlineExceeded(Exception):
    """Exceeded deadline of a detector."""

    def __str__(self) -> str:
        return "deadline exceeded"


def get_sort_key(finding: Finding) -> tuple[int, float, str]:
    """Return the key that sorts findings by step; within a step, the most probable first."""
    return finding.step, -finding.probability, finding.detector


def _build_identity_key(finding: Finding) -> tuple[object, ...]:
    """Return a key that is equal for duplicate findings."""
    first = finding.evidence[0] if finding.evidence else None
    return finding.detector, finding.step, finding.codes, first, None if first else finding.message


def _find_problem(finding: Finding, view: RunView) -> str | None:
    """Return a description of the invalid field of a finding, or None; it does not quote the run."""
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
