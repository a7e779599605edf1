"""What recoveries teach: schemata that bore out are believed more, others less, and new ones are kept.

A schema that resembles a step speaks for it when a recovery is planned. Whether that recovery helped is
counted for the schema. A recovery that helped, and for which none spoke, is distilled into a schema of its
own. It is quarantined: no single run teaches the others. Nothing of a run's text goes in but what
`agentguard.schemata.plain` leaves of it, and advice that is written in this project.

A run only hands over what there is to learn when it ends. A thread that lives as long as there is work does
the rest.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agentguard.detect.base import Finding
from agentguard.detect.run import detect
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.base import Outcome, Recovery, Tier
from agentguard.recover.verify import resumed_at
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from agentguard.schemata.cache import SchemaCache
    from agentguard.schemata.model import Match, Schema
    from agentguard.store.store import Store

_NEAREST: Final = 3
_MOST_RUNS: Final = 1_024
_MOST_WAITING: Final = 256
_MOST_NEW: Final = 4
_REFRESH_S: Final = 30.0
_UNTAUGHT: Final = frozenset({Tier.HAND_OVER, Tier.STOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    run: Trajectory
    recoveries: tuple[Recovery, ...]


class Learning:
    """Lets schemata speak in guarded runs, and learn from them; one for all runs of a guard; thread-safe.

    Args:
        cache: the schemata.
        same_task: let schemata speak that were learnt from the very same task. An evaluation must not.
        clock: gives epoch seconds.

    Attributes:
        cache: the schemata.
        lost: runs that were not learnt from, as too many waited.
        failures: types of the errors that kept something from being learnt, the latest 16.
    """

    def __init__(
        self, cache: SchemaCache, *, same_task: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.cache, self.same_task = cache, same_task
        self.lost = 0
        self.failures: deque[str] = deque(maxlen=16)
        self._clock = clock
        self._open: OrderedDict[str, dict[int, Recovery]] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._jobs: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)
        self._worker: threading.Thread | None = None
        self._exchanged = clock()

    def credit(
        self, run: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding], *, rank: bool
    ) -> Diagnosis:
        """The diagnosis with the schemata that spoke for its hypotheses.

        Args:
            run: the run so far.
            diagnosis: of it.
            findings: what was found on it.
            rank: also change probabilities by what the schemata say, and the order with them.
        """
        if not diagnosis.hypotheses or not len(self.cache):
            return diagnosis
        spoke = self._spoke(run, findings)
        made = [_told(one, spoke.get(one.step), rank=rank) for one in diagnosis.hypotheses]
        if rank:
            made.sort(key=lambda one: -one.probability)  # stable: equal ones stay in their order
        return replace(diagnosis, hypotheses=tuple(made))

    def observe(self, recovery: Recovery) -> None:
        """Remember a recovery of a run that goes on; an observer of a guard."""
        with self._lock:
            self._open.setdefault(recovery.run, {})[recovery.id] = recovery
            while len(self._open) > _MOST_RUNS:
                self._open.popitem(last=False)

    def at_end(self, run: Trajectory, findings: Sequence[Finding]) -> None:
        """Hand a run that has ended over to be learnt from; takes microseconds."""
        del findings  # of the live line; a failure that was recovered from lies beside it
        with self._lock:
            held = tuple(self._open.pop(run.id, {}).values())
            settled = tuple(one for one in held if one.outcome is not Outcome.PENDING)
            if not settled and self._clock() - self._exchanged < _REFRESH_S:
                return
            if len(self._jobs) >= _MOST_WAITING:
                self._jobs.popleft()
                self.lost += 1
            self._jobs.append(_Job(run=run, recoveries=settled))
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="agentguard-learning")
                self._worker.start()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs that have ended are learnt from; False if that took too long."""
        with self._lock:
            return self._done.wait_for(lambda: self._worker is None, timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._worker = None
                    self._done.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                new = self._distilled(job)
                pending = [(job, new)]
                self.cache.exchange(lambda pending=pending: self._apply(pending))  # type: ignore[misc]
                self._exchanged = self._clock()
            except (
                Exception
            ) as error:  # a keep, a plug-in's vectoriser: the runs go on without what is lost here
                self.failures.append(type(error).__name__)

    def _apply(self, pending: list[tuple[_Job, list[Schema]]]) -> None:
        """Count and take in; once, though the exchange may be tried again."""
        now = self._clock()
        while pending:
            job, new = pending.pop()
            for schema_id, outcome in self._verdicts(job).items():
                self.cache.use(schema_id, now)
                if outcome is Outcome.CONFIRMED:
                    self.cache.confirm(schema_id, now)
                else:
                    self.cache.refute(schema_id, now)
            for schema in new:
                self.cache.observe(schema, now, recovered=True)
            self.cache.tend(now)

    def _verdicts(self, job: _Job) -> dict[str, Outcome]:
        """What a run says of the schemata that spoke in it: one word each, the last, and once for all."""
        said = {name: one.outcome for one in job.recoveries for name in one.schemata}
        new = {name: outcome for name, outcome in said.items() if (job.run.id, name) not in self._seen}
        self._seen.update(dict.fromkeys((job.run.id, name) for name in new))
        while len(self._seen) > 64 * _MOST_RUNS:
            self._seen.popitem(last=False)
        return {name: outcome for name, outcome in new.items() if self.cache.index.get(name) is not None}

    def _distilled(self, job: _Job) -> list[Schema]:
        """Schemata of the failures that were recovered from though none spoke."""
        from agentguard.schemata.distil import EmbeddedDistiller, Fault
        from agentguard.schemata.model import Origin

        made: dict[str, Schema] = {}
        for one in job.recoveries:
            teaches = one.outcome is Outcome.CONFIRMED and one.plan.tier not in _UNTAUGHT
            line = _line(job.run, one) if teaches and not one.schemata else None
            if line is None or len(made) >= _MOST_NEW:
                continue
            fault = Fault(step=one.plan.step, codes=one.plan.codes, origin=Origin.RECOVERED)
            schema = EmbeddedDistiller().distil_step(line, detect(line).findings, fault)
            if schema is not None:
                made[schema.id] = replace(schema, confirmed=1)
        return list(made.values())

    def _spoke(self, run: Trajectory, findings: Sequence[Finding]) -> dict[int, tuple[Match, float]]:
        """Step to the schema that speaks for it, and how much, in log-odds."""
        from agentguard.schemata.portrait import portray
        from agentguard.schemata.rules import trust

        portraits = portray(run, findings)
        aside = () if self.same_task else (run.task,)
        found = self.cache.index.search(portraits, _NEAREST, leave_out_groups=aside)
        best = [max(each, key=lambda one: one.likeness * trust(one.schema), default=None) for each in found]
        likeness = [0.0 if one is None else one.likeness for one in best]
        usual = sum(likeness) / len(likeness) if likeness else 0.0
        spread = math.sqrt(sum((one - usual) ** 2 for one in likeness) / len(likeness)) if likeness else 0.0
        said: dict[int, tuple[Match, float]] = {}
        for portrait, match in zip(portraits, best, strict=True):
            if match is None or portrait.step is None or not self._resembles(match):
                continue
            above = (match.likeness - usual) / spread if spread > 1e-9 else 0.0
            if above >= 0:
                said[portrait.step] = match, above * (2 * trust(match.schema) - 1)
        return said

    def _resembles(self, match: Match) -> bool:
        """As alike as what is merged into one schema, and not more often wrong than right."""
        near = 1 - match.likeness <= self.cache.rules.new_over
        return near and match.schema.confirmed >= match.schema.refuted


def _told(one: Hypothesis, said: tuple[Match, float] | None, *, rank: bool) -> Hypothesis:
    if said is None or one.schemata:
        return one
    match, log_odds = said
    odds = one.probability / max(1e-9, 1 - one.probability) * math.exp(log_odds)
    return replace(
        one,
        schemata=(match.schema.id,),
        probability=odds / (1 + odds) if rank and one.probability < 1 else one.probability,
        correction=one.correction or match.schema.correction,
        reason=f"{one.reason.rstrip('.')}; it looks like an earlier failure (schema {match.schema.id})",
    )


def _line(run: Trajectory, recovery: Recovery) -> Trajectory | None:
    """The run as it was when a recovery was planned; None if that line is not kept whole."""
    plan = recovery.plan
    if not plan.undone:
        steps = run.steps[: recovery.at_step]
        return replace(run, steps=steps, branches=()) if plan.step < len(steps) else None
    back = resumed_at(recovery)
    for branch in run.branches:
        if branch.parent is None and branch.fork_step == back and branch.reason == plan.reason:
            steps = (*run.steps[:back], *branch.steps)
            whole = len(run.steps) >= back and plan.step < len(steps)
            return replace(run, steps=steps, branches=()) if whole else None
    return None


def learning_of(given: str | Path | bool | Learning, store: Store | None) -> Learning | None:
    """What a guard is given for its schemata; None if it has none.

    Args:
        given: a file of schemata or a database; True: the guard's own store, or memory if it has none.
        store: the guard's store.

    Raises:
        FormatError, ConfigError, StoreError, MissingExtra: the schemata at that place cannot be used.
    """
    if isinstance(given, Learning):
        return given
    if given is False:
        return None
    from agentguard.schemata.cache import SchemaCache
    from agentguard.schemata.keep import SchemaTable, keep_at

    if given is True:
        return Learning(SchemaCache(None if store is None else SchemaTable(store)))
    return Learning(SchemaCache(keep_at(given)))
