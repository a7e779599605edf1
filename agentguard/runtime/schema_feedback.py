"""What recoveries teach: schemata that bore out are believed more, others less, and new ones are kept.

A schema that resembles a step speaks for it when a recovery is planned. Whether that recovery helped is
counted for the schema. A recovery that helped, and for which none spoke, is distilled into a schema of its
own. It is quarantined: no single run teaches the others. Nothing of a run's text goes in but what
`agentguard.schemata.profiles.delexicalization` leaves of it, and advice that is written in this project.

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
from agentguard.detect.runner import detect
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.outcome_verification import get_resume_step
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryTier
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from agentguard.schemata.live_cache import SchemaCache
    from agentguard.schemata.model import ErrorSchema, Match
    from agentguard.store.store import Store

_MAX_MATCHES: Final = 3
_MAX_RUNS: Final = 1_024
_MAX_QUEUE: Final = 256
_MAX_NEW_SCHEMATA: Final = 4
_REFRESH_INTERVAL_S: Final = 30.0
_EXCLUDED_TIERS: Final = frozenset({RecoveryTier.HAND_OVER, RecoveryTier.STOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class _FeedbackJob:
    run: Trajectory
    recoveries: tuple[Recovery, ...]


class SchemaFeedback:
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
        self, cache: SchemaCache, *, allow_same_task: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.cache, self.allow_same_task = cache, allow_same_task
        self.dropped_runs = 0
        self.failures: deque[str] = deque(maxlen=16)
        self._clock = clock
        self._open_recoveries: OrderedDict[str, dict[int, Recovery]] = OrderedDict()
        self._counted_uses: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._queue: deque[_FeedbackJob] = deque()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._worker: threading.Thread | None = None
        self._last_exchange = clock()

    def annotate_diagnosis(
        self, run: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding], *, rerank: bool
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
        spoke = self._match_schemata(run, findings)
        made = [_annotate_hypothesis(one, spoke.get(one.step), rerank=rerank) for one in diagnosis.hypotheses]
        if rerank:
            made.sort(key=lambda one: -one.probability)  # stable: equal ones stay in their order
        return replace(diagnosis, hypotheses=tuple(made))

    def record_recovery(self, recovery: Recovery) -> None:
        """Remember a recovery of a run that goes on; an observer of a guard."""
        with self._lock:
            self._open_recoveries.setdefault(recovery.run, {})[recovery.id] = recovery
            while len(self._open_recoveries) > _MAX_RUNS:
                self._open_recoveries.popitem(last=False)

    def record_run_end(self, run: Trajectory, findings: Sequence[Finding]) -> None:
        """Hand a run that has ended over to be learnt from; takes microseconds."""
        del findings  # of the live line; a failure that was recovered from lies beside it
        with self._lock:
            held = tuple(self._open_recoveries.pop(run.id, {}).values())
            settled = tuple(one for one in held if one.outcome is not RecoveryOutcome.PENDING)
            if not settled and self._clock() - self._last_exchange < _REFRESH_INTERVAL_S:
                return
            if len(self._queue) >= _MAX_QUEUE:
                self._queue.popleft()
                self.dropped_runs += 1
            self._queue.append(_FeedbackJob(run=run, recoveries=settled))
            if self._worker is None:
                self._worker = threading.Thread(target=self._run_worker, name="agentguard-learning")
                self._worker.start()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs that have ended are learnt from; False if that took too long."""
        with self._lock:
            return self._idle.wait_for(lambda: self._worker is None, timeout_s)

    def _run_worker(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._worker = None
                    self._idle.notify_all()
                    return
                job = self._queue.popleft()
            try:
                new = self._distill(job)
                pending = [(job, new)]
                self.cache.synchronize(lambda pending=pending: self._apply(pending))  # type: ignore[misc]
                self._last_exchange = self._clock()
            except (
                Exception
            ) as error:  # a keep, a plug-in's vectoriser: the runs go on without what is lost here
                self.failures.append(type(error).__name__)

    def _apply(self, pending: list[tuple[_FeedbackJob, list[ErrorSchema]]]) -> None:
        """Count and take in; once, though the exchange may be tried again."""
        now = self._clock()
        while pending:
            job, new = pending.pop()
            for schema_id, outcome in self._collect_outcomes(job).items():
                self.cache.record_use(schema_id, now)
                if outcome is RecoveryOutcome.CONFIRMED:
                    self.cache.record_confirmation(schema_id, now)
                else:
                    self.cache.record_refutation(schema_id, now)
            for schema in new:
                self.cache.insert(schema, now, recovered=True)
            self.cache.maintain(now)

    def _collect_outcomes(self, job: _FeedbackJob) -> dict[str, RecoveryOutcome]:
        """What a run says of the schemata that spoke in it: one word each, the last, and once for all."""
        said = {name: one.outcome for one in job.recoveries for name in one.schemata}
        new = {
            name: outcome for name, outcome in said.items() if (job.run.id, name) not in self._counted_uses
        }
        self._counted_uses.update(dict.fromkeys((job.run.id, name) for name in new))
        while len(self._counted_uses) > 64 * _MAX_RUNS:
            self._counted_uses.popitem(last=False)
        return {name: outcome for name, outcome in new.items() if self.cache.index.get(name) is not None}

    def _distill(self, job: _FeedbackJob) -> list[ErrorSchema]:
        """Schemata of the failures that were recovered from though none spoke."""
        from agentguard.schemata.distillation.distiller import EmbeddedDistiller, FailureLocation
        from agentguard.schemata.model import SchemaOrigin

        made: dict[str, ErrorSchema] = {}
        for one in job.recoveries:
            teaches = one.outcome is RecoveryOutcome.CONFIRMED and one.plan.tier not in _EXCLUDED_TIERS
            line = _reconstruct_branch(job.run, one) if teaches and not one.schemata else None
            if line is None or len(made) >= _MAX_NEW_SCHEMATA:
                continue
            fault = FailureLocation(step=one.plan.step, codes=one.plan.codes, origin=SchemaOrigin.RECOVERED)
            schema = EmbeddedDistiller().distill_step(line, detect(line).findings, fault)
            if schema is not None:
                made[schema.id] = replace(schema, confirmed=1)
        return list(made.values())

    def _match_schemata(self, run: Trajectory, findings: Sequence[Finding]) -> dict[int, tuple[Match, float]]:
        """Step to the schema that speaks for it, and how much, in log-odds."""
        from agentguard.schemata.cache_policy import posterior_trust
        from agentguard.schemata.profiles.step_profile import profile_steps

        portraits = profile_steps(run, findings)
        aside = () if self.allow_same_task else (run.task,)
        found = self.cache.index.search(portraits, _MAX_MATCHES, excluded_groups=aside)
        best = [
            max(each, key=lambda one: one.similarity * posterior_trust(one.schema), default=None)
            for each in found
        ]
        likeness = [0.0 if one is None else one.similarity for one in best]
        usual = sum(likeness) / len(likeness) if likeness else 0.0
        spread = math.sqrt(sum((one - usual) ** 2 for one in likeness) / len(likeness)) if likeness else 0.0
        said: dict[int, tuple[Match, float]] = {}
        for portrait, match in zip(portraits, best, strict=True):
            if match is None or portrait.step is None or not self._is_match(match):
                continue
            above = (match.similarity - usual) / spread if spread > 1e-9 else 0.0
            if above >= 0:
                said[portrait.step] = match, above * (2 * posterior_trust(match.schema) - 1)
        return said

    def _is_match(self, match: Match) -> bool:
        """As alike as what is merged into one schema, and not more often wrong than right."""
        near = 1 - match.similarity <= self.cache.policy.novelty_threshold
        return near and match.schema.confirmed >= match.schema.refuted


def _annotate_hypothesis(
    hypothesis: Hypothesis, match_score: tuple[Match, float] | None, *, rerank: bool
) -> Hypothesis:
    if match_score is None or hypothesis.schemata:
        return hypothesis
    match, log_odds = match_score
    odds = hypothesis.probability / max(1e-9, 1 - hypothesis.probability) * math.exp(log_odds)
    return replace(
        hypothesis,
        schemata=(match.schema.id,),
        probability=odds / (1 + odds) if rerank and hypothesis.probability < 1 else hypothesis.probability,
        correction=hypothesis.correction or match.schema.correction,
        reason=f"{hypothesis.reason.rstrip('.')}; it looks like an earlier failure (schema {match.schema.id})",  # noqa: E501
    )


def _reconstruct_branch(run: Trajectory, recovery: Recovery) -> Trajectory | None:
    """The run as it was when a recovery was planned; None if that line is not kept whole."""
    plan = recovery.plan
    if not plan.undone:
        steps = run.steps[: recovery.at_step]
        return replace(run, steps=steps, branches=()) if plan.step < len(steps) else None
    back = get_resume_step(recovery)
    for branch in run.branches:
        if branch.parent is None and branch.fork_step == back and branch.reason == plan.reason:
            steps = (*run.steps[:back], *branch.steps)
            whole = len(run.steps) >= back and plan.step < len(steps)
            return replace(run, steps=steps, branches=()) if whole else None
    return None


def build_schema_feedback(
    source: str | Path | bool | SchemaFeedback, store: Store | None
) -> SchemaFeedback | None:
    """What a guard is given for its schemata; None if it has none.

    Args:
        given: a file of schemata or a database; True: the guard's own store, or memory if it has none.
        store: the guard's store.

    Raises:
        FormatError, ConfigError, StoreError, MissingExtra: the schemata at that place cannot be used.
    """
    if isinstance(source, SchemaFeedback):
        return source
    if source is False:
        return None
    from agentguard.schemata.live_cache import SchemaCache
    from agentguard.schemata.persistence import SqlSchemaStore, open_for_process

    if source is True:
        return SchemaFeedback(SchemaCache(None if store is None else SqlSchemaStore(store)))
    return SchemaFeedback(SchemaCache(open_for_process(source)))
