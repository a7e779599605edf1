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
    ANYTHING,
    Detector,
    DetectorFactory,
    DetectorFailure,
    Evidence,
    Finding,
    Foresight,
    Needs,
    detectors,
)
from agentguard.detect.view import RunView
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.trajectory.model import Source, Step, Trajectory

Specs = Mapping[str, Mapping[str, Any] | bool | None]

MAX_FAILURES = 3
MAX_FINDINGS = 200
"""Findings one detector may yield for one step; what lies above is junk, and may be endless."""

DEADLINE_S = 0.5

_SOURCES = tuple(Source)
_EMPTY: Iterable[Finding] = ()
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


def build(specs: Specs | None = None, *, has: Needs | None = None) -> list[Detector]:
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
    for name, factory, given in _all_known(has) if specs is None else _chosen(specs, has):
        try:
            made.append(factory(**given) if given else factory())
        except AgentGuardError:
            raise
        except Exception as error:  # a third party's factory may raise anything on options it does not expect
            raise ConfigError(f"detector {name!r} cannot be made: {type(error).__name__}") from error
    return made


_Chosen = Sequence[tuple[str, DetectorFactory, dict[str, Any]]]


def _chosen(specs: Specs, has: Needs | None) -> _Chosen:
    known, chosen = detectors(), []
    for name, options in specs.items():
        factory = known.get(name)
        if options is False:
            continue
        given = {} if options is None else _given(name, options)
        if given or has is None or has.enough(getattr(factory, "needs", ANYTHING)):
            chosen.append((name, factory, given))
    return chosen


def _all_known(has: Needs | None) -> _Chosen:
    """All that are registered and have something to look for; found out anew once others are registered."""
    names = detectors().names()
    if has is not None and has.turns > _MOST_TURNS:
        has = Needs(_MOST_TURNS, has.calls, has.results)
    if (names, has) not in _ALL:
        if len(_ALL) > 4 * _MOST_TURNS:
            _ALL.clear()
        _ALL[names, has] = _chosen(dict.fromkeys(names), has)
    return _ALL[names, has]


_MOST_TURNS = 64
"""Turns of a run with which a detector has enough; no detector of ours needs as many."""

_ALL: dict[tuple[tuple[str, ...], Needs | None], _Chosen] = {}


def _given(name: str, options: Mapping[str, Any] | bool) -> dict[str, Any]:
    if options is True:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"detector {name!r}: options must be a mapping, or false to switch it off")
    return {str(key): value for key, value in options.items()}


class Watcher:
    """Watches one run, step by step.

    Args:
        view: the run before its first step.
        specs: as `build` takes them, or detectors already made.
        deadline_s: seconds one detector may take over one step; measured, and checked when it returns.
    """

    def __init__(
        self,
        view: RunView | None = None,
        specs: Specs | Iterable[Detector] | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        if not deadline_s > 0:
            raise ConfigError("deadline_s must be above 0")
        self.view = view if view is not None else RunView()
        self.deadline_s = deadline_s
        self.failures: list[DetectorFailure] = []
        self._active = build(specs) if specs is None or isinstance(specs, Mapping) else list(specs)
        self._foreseen: list[tuple[Detector, tuple[Finding, ...]]] = []
        self._set_up()
        self._strikes: dict[int, int] = {}
        self._known: set[tuple[object, ...]] = set()

    def observe(self, step: Step) -> tuple[Finding, ...]:
        """Take in one more step; return what is new. ``step.index`` must be the number of steps before it."""
        if step.index != len(self.view.steps):
            raise ValueError(f"step {step.index} given where step {len(self.view.steps)} was expected")
        view = self.view
        asked = self._watching(step.source)
        foreseen = (
            view.append(step).foreseen and len(self._foreseen) == self._looking_ahead(step.source).spared
        )
        found: list[Finding] = []
        if foreseen:
            asked = self._looking_ahead(step.source).unspared
            for detector, before_tools in self._foreseen:
                if before_tools:
                    found += self._again(detector, step, before_tools)
        before = time.perf_counter()
        for detector in asked:
            try:
                yielded = detector.observe(step, view)
                if yielded is not _EMPTY and yielded != []:
                    found += self._new(yielded)
            except Exception as error:  # a detector may raise anything; the run and the other detectors go on
                self._strike(detector, step.index, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._strike(detector, step.index, _Overrun(), after - before)
            before = after
        found.sort(key=_order)
        return tuple(found)

    def foresee(self, step: Step) -> tuple[Finding, ...]:
        """What is wrong with a turn whose tool calls have not run yet; it may be refused, so nothing is kept.

        ``step.index`` must be the number of steps so far. What is found here is found again by `observe` if
        the turn is committed after all.
        """
        self.view.foresee(step)
        self._foreseen = []
        found: list[Finding] = []
        before = time.perf_counter()
        for detector in self._looking_ahead(step.source).can:
            try:
                yielded = detector.foresee(step, self.view)
                here = tuple(islice(yielded, MAX_FINDINGS)) if yielded is not _EMPTY else ()
                if getattr(detector, "foresees_all", False):
                    self._foreseen.append((detector, here))
                found += here
            except Exception as error:  # as in observe
                self._strike(detector, step.index, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._strike(detector, step.index, _Overrun(), after - before)
            before = after
        found.sort(key=_order)
        return tuple(one for one in found if isinstance(one, Finding) and one.step == step.index)

    def finish(self) -> tuple[Finding, ...]:
        """Say that the run has ended; return what is new. The deadline holds here too."""
        found: list[Finding] = []
        before = time.perf_counter()
        for detector in tuple(self._active):
            try:
                yielded = detector.finish(self.view)
                if yielded is not _EMPTY:
                    found += self._new(yielded)
            except Exception as error:  # as in observe
                self._strike(detector, None, error, time.perf_counter() - before)
            after = time.perf_counter()
            if after - before > self.deadline_s:
                self._strike(detector, None, _Overrun(), after - before)
            before = after
        found.sort(key=_order)
        return tuple(found)

    def _again(self, detector: Detector, step: Step, foreseen: tuple[Finding, ...]) -> list[Finding]:
        """What was foreseen, if it still holds: a tool may have changed its arguments in place."""
        try:
            return self._new(foreseen)
        except _Junk:
            pass
        try:
            return self._new(detector.observe(step, self.view))
        except Exception as error:  # as in observe
            self._strike(detector, step.index, error, 0.0)
            return []

    def _new(self, yielded: Iterable[object]) -> list[Finding]:
        """The valid findings that were not seen before; those before a junk one are lost with it."""
        new: dict[tuple[object, ...], Finding] = {}
        for count, finding in enumerate(yielded):
            if count >= MAX_FINDINGS:
                raise _Junk("yielded too many findings")
            if not isinstance(finding, Finding):
                raise _Junk(f"yielded {type(finding).__name__} instead of a Finding")
            problem = _problem(finding, self.view)
            if problem:
                raise _Junk(problem)
            key = _identity(finding)
            if key not in self._known:
                new.setdefault(key, finding)
        self._known.update(new)
        return list(new.values())

    def _strike(
        self, detector: Detector | Foresight, step: int | None, error: Exception, seconds: float
    ) -> None:
        name = getattr(detector, "name", type(detector).__name__)
        # The text of a foreign exception may quote the run: only its type is safe to log.
        reason = str(error) if isinstance(error, (_Junk, _Overrun)) else type(error).__name__
        self.failures.append(DetectorFailure(detector=str(name), step=step, error=reason, seconds=seconds))
        self._strikes[id(detector)] = self._strikes.get(id(detector), 0) + 1
        if self._strikes[id(detector)] >= MAX_FAILURES:
            self._active = [one for one in self._active if one is not detector]
            self._set_up()

    def _set_up(self) -> None:
        """Forget which detectors a step of each source goes to; it is found out when one comes.

        Many runs are short, and have steps of two sources: this is done for each of them.
        """
        self._foreseen = []  # not cleared: a loop over it may be under way
        self._by_source: dict[Source, tuple[Any, ...]] = {}
        self._ahead: dict[Source, _Ahead] = {}

    def _watching(self, source: Source) -> tuple[Any, ...]:
        """The detectors that a step of this source goes to: those that say so, or do not say."""
        known = self._by_source.get(source)
        if known is None:
            active = self._active
            known = tuple([d for d in active if source in getattr(d, "watches", _SOURCES)])
            self._by_source[source] = known
        return known

    def _looking_ahead(self, source: Source) -> _Ahead:
        """As `_watching`, of turns that are looked at before their tools run.

        What `Foresight` asks is asked by its name: isinstance takes a hundred times as long.
        """
        known = self._ahead.get(source)
        if known is None:
            asked = self._watching(source)
            can = tuple([d for d in asked if getattr(d, "foresee", None) is not None])
            spared = [id(d) for d in can if getattr(d, "foresees_all", False)]
            known = _Ahead(can, tuple([d for d in asked if id(d) not in spared]), len(spared))
            self._ahead[source] = known
        return known


class _Ahead(NamedTuple):
    """Detectors of a turn that was looked at before its tools ran.

    Attributes:
        can: those that can look at it then.
        unspared: those that must be asked again once it has run; ``spared`` is the number of the others.
    """

    can: tuple[Any, ...]
    unspared: tuple[Any, ...]
    spared: int


def detect(
    trajectory: Trajectory, specs: Specs | Iterable[Detector] | None = None, *, deadline_s: float = DEADLINE_S
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
        specs = build(specs, has=_had(trajectory.steps))
    watcher = Watcher(RunView.of(trajectory), specs, deadline_s=deadline_s)
    found: list[Finding] = []
    for step in trajectory.steps:
        found += watcher.observe(step)
    found += watcher.finish()
    findings = tuple(sorted(found, key=_order))
    return DetectionResult(
        findings=findings, failures=tuple(watcher.failures), seconds=time.perf_counter() - start
    )


def _had(steps: Sequence[Step]) -> Needs:
    return Needs(
        turns=sum([step.source is Source.AGENT for step in steps]),
        calls=any(step.tool_calls for step in steps),
        results=any(step.observations or step.source is Source.ENVIRONMENT for step in steps),
    )


class _Junk(Exception):
    """What a detector yielded is no valid finding."""


class _Overrun(Exception):
    """A detector took longer than its deadline."""

    def __str__(self) -> str:
        return "deadline exceeded"


def _order(finding: Finding) -> tuple[int, float, str]:
    return finding.step, -finding.probability, finding.detector


def _identity(finding: Finding) -> tuple[object, ...]:
    """Two findings with equal identity say the same of the same place."""
    first = finding.evidence[0] if finding.evidence else None
    return finding.detector, finding.step, finding.codes, first, None if first else finding.message


def _problem(finding: Finding, view: RunView) -> str | None:
    """What is wrong with a finding, or None; the text names no content of the run."""
    if not isinstance(finding.probability, (int, float)) or not 0 <= finding.probability <= 1:
        return "probability outside [0, 1]"
    if not isinstance(finding.step, int) or not 0 <= finding.step < len(view.steps):
        return "a step that is not in the run"
    if not all(isinstance(code, str) and ":" in code for code in finding.codes):
        return "a code without its taxonomy"
    if not all(_exact(evidence, view) for evidence in finding.evidence):
        return "a quote that is not in the run"
    return None


def _exact(evidence: Evidence, view: RunView) -> bool:
    if not 0 <= evidence.step < len(view.steps) or evidence.start < 0:
        return False
    text: str = view.steps[evidence.step].text(evidence.field)
    return bool(evidence.quote) and text[evidence.start : evidence.end] == evidence.quote
