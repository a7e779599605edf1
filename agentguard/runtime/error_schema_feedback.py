"""Feedback of recoveries to the error schemata: trust in schemata, and new schemata.

- When a recovery is planned, a schema that resembles a step supports the hypothesis for this step.
- The outcome of the recovery updates the trust in the schema.
- A confirmed recovery without a matching schema is distilled into a new schema. The new schema is
  quarantined, so that a single run does not influence other runs.
- The text of a schema is delexicalized (`agentguard.schemata.profiles.delexicalization`). Its correction is
  text of agentguard, not of a run.

A run only queues a job when it ends. A background thread processes the queue and exits when it is empty.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from agentguard._bounded_map import BoundedMap
from agentguard.detect.base import Finding
from agentguard.detect.detection import detect
from agentguard.errors import AgentGuardError
from agentguard.judge.cache import find_tenant
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.outcome_verification import get_resume_step
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryTier
from agentguard.runtime.background_queue import BackgroundQueue
from agentguard.schemata.lazy_store import LazySchemaStore
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
_EVIDENT_OUTCOMES: Final = frozenset({RecoveryOutcome.CONFIRMED, RecoveryOutcome.REFUTED})
_EXCLUDED_TIERS: Final = frozenset({RecoveryTier.ESCALATE, RecoveryTier.STOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class _FeedbackJob:
    run: Trajectory
    recoveries: tuple[Recovery, ...]


class SchemaFeedback:
    """Use of schemata in guarded runs and feedback from these runs; one object per guard, thread-safe.

    A database is opened when a schema is first found in it, or when a recovery is first confirmed.

    Args:
        source: cache of the schemata, or the database that has them.
        allow_same_task: True to use schemata from runs of the same task. An evaluation must set it to False.
        clock: function that returns epoch seconds.

    Attributes:
        clock: function that returns epoch seconds.
        next_look_at: time of the next check for schemata by `prepare`; infinity if the database is open.
        queue: jobs for runs that have ended.
    """

    def __init__(
        self,
        source: SchemaCache | LazySchemaStore,
        *,
        allow_same_task: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.allow_same_task = allow_same_task
        self.queue = BackgroundQueue("agentguard-learning", max_jobs=_MAX_QUEUE)
        self.clock = clock
        self._database = source if isinstance(source, LazySchemaStore) else None
        self._cache = None if isinstance(source, LazySchemaStore) else source
        self._cache_lock = threading.RLock()
        self.next_look_at = -math.inf if self._cache is None else math.inf
        self._load_error: AgentGuardError | None = None
        self._tenants: dict[str, SchemaFeedback] = {"": self}
        self._open_recoveries = BoundedMap[str, dict[int, Recovery]](_MAX_RUNS)
        self._counted_uses = BoundedMap[tuple[str, str], None](64 * _MAX_RUNS)
        self._lock = threading.Lock()
        self._last_exchange = clock()

    @property
    def cache(self) -> SchemaCache:
        """Cache of the schemata; its first use opens the database. Raises AgentGuardError if that fails."""
        with self._cache_lock:
            if self._cache is None:
                from agentguard.schemata.live_cache import SchemaCache

                self._cache = SchemaCache(None if self._database is None else self._database.open())
                self._last_exchange, self.next_look_at = self.clock(), math.inf
            return self._cache

    def for_tenant(self, tenant: str) -> SchemaFeedback:
        """Return the feedback with the schemata of a tenant in the same database.

        A file of schemata serves all tenants.
        """
        if self._database is None:
            return self
        with self._lock:
            if tenant not in self._tenants:
                feedback = SchemaFeedback(
                    self._database.for_tenant(tenant), allow_same_task=self.allow_same_task, clock=self.clock
                )
                feedback.queue, feedback._tenants = self.queue, self._tenants
                self._tenants[tenant] = feedback
            return self._tenants[tenant]

    def prepare(self) -> None:
        """Load the schemata in the background, since no turn of an agent waits for the database."""
        self.queue.put(self._has_schemata)

    def annotate_diagnosis(
        self, run: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding], *, rerank: bool
    ) -> Diagnosis:
        """Return the diagnosis with the matching schemata of its hypotheses.

        The schemata are those of the tenant of the `agentguard.judge.cache.VerdictScope` around the call.

        Args:
            run: the run so far.
            diagnosis: diagnosis of the run.
            findings: findings on the run.
            rerank: True to adjust the probabilities by the schemata and sort the hypotheses by them.

        Raises:
            AgentGuardError: the database cannot be used.
        """
        scoped = self._select_tenant()
        if not diagnosis.hypotheses or not scoped._has_schemata():
            return diagnosis
        return scoped.annotate_live_diagnosis(run, diagnosis, findings, rerank=rerank)

    def annotate_live_diagnosis(
        self, run: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding], *, rerank: bool
    ) -> Diagnosis:
        """Return the diagnosis of `annotate_diagnosis`; without a loaded cache, return it unchanged."""
        if not diagnosis.hypotheses or self._cache is None or not len(self._cache):
            return diagnosis
        matches = self._match_schemata(run, findings)
        hypotheses = [
            _annotate_hypothesis(one, matches.get(one.step), rerank=rerank) for one in diagnosis.hypotheses
        ]
        if rerank:
            hypotheses.sort(key=lambda one: -one.probability)  # stable: equal probabilities keep their order
        return replace(diagnosis, hypotheses=tuple(hypotheses))

    def list_prompt_texts(self, run: Trajectory) -> tuple[str, ...]:
        """Return the texts of the three schemata that match steps of a run best, for a judge's prompt."""
        scoped = self._select_tenant()
        try:
            if not scoped._has_schemata():
                return ()
        except AgentGuardError:  # the diagnosis reports the error
            return ()
        matches = scoped._match_schemata(run, detect(run).findings).values()
        ranked = sorted(matches, key=lambda one: (-one[1], one[0].schema.id))
        texts = dict.fromkeys(match.schema.to_prompt_text() for match, _ in ranked)
        return tuple(texts)[:_MAX_MATCHES]

    def _select_tenant(self) -> SchemaFeedback:
        tenant = find_tenant()
        return self if tenant is None else self.for_tenant(tenant)

    def _has_schemata(self) -> bool:
        """Return whether there are active schemata; open the database if it has schemata."""
        with self._cache_lock:
            if self._cache is None:
                now = self.clock()
                if now >= self.next_look_at:
                    self.next_look_at = now + _REFRESH_INTERVAL_S
                    self._load()
                elif self._load_error is not None:
                    raise self._load_error
            cache = self._cache
        if cache is None:
            return False
        self._refresh(cache)
        return len(cache) > 0

    def _load(self) -> None:
        self._load_error = None
        try:
            if self._database is None or self._database.has_schemata():
                _ = self.cache
        except AgentGuardError as error:
            self._load_error = error
            raise

    def _refresh(self, cache: SchemaCache) -> None:
        """Read the changes of other processes in the background, at most once per interval."""
        now = self.clock()
        if self._database is not None and now - self._last_exchange >= _REFRESH_INTERVAL_S:
            self._last_exchange = now
            self.queue.put(partial(cache.synchronize, lambda: None))

    def record_recovery(self, recovery: Recovery) -> None:
        """Record a recovery of a live run; the method is an observer of a guard."""
        with self._lock:
            self._open_recoveries.setdefault(recovery.run, {})[recovery.id] = recovery

    def record_run_end(self, run: Trajectory, findings: Sequence[Finding]) -> None:
        """Queue a run that has ended for processing; takes microseconds."""
        del findings  # they cover the current branch; a recovered failure is on an abandoned branch
        with self._lock:
            recoveries = tuple(self._open_recoveries.pop(run.id, {}).values())
            settled = tuple(one for one in recoveries if one.outcome in _EVIDENT_OUTCOMES)
            is_recent = self._cache is None or self.clock() - self._last_exchange < _REFRESH_INTERVAL_S
            if not settled and is_recent:
                return
        self.queue.put(partial(self._learn, _FeedbackJob(run=run, recoveries=settled)))

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all queued runs are processed; return False after the timeout."""
        return self.queue.flush(timeout_s)

    def _learn(self, job: _FeedbackJob) -> None:
        pending = [(job, self._distill(job))]
        self.cache.synchronize(lambda: self._apply(pending))
        self._last_exchange = self.clock()

    def _apply(self, pending: list[tuple[_FeedbackJob, list[ErrorSchema]]]) -> None:
        """Count outcomes and insert new schemata; each job only once, although the caller may retry."""
        now = self.clock()
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
        """Return the last outcome of each schema used in the run; count a schema once per run."""
        outcomes = {name: one.outcome for one in job.recoveries for name in one.schemata}
        new = {
            name: outcome
            for name, outcome in outcomes.items()
            if (job.run.id, name) not in self._counted_uses
        }
        self._counted_uses.update(dict.fromkeys((job.run.id, name) for name in new))
        return {name: outcome for name, outcome in new.items() if self.cache.index.get(name) is not None}

    def _distill(self, job: _FeedbackJob) -> list[ErrorSchema]:
        """Distill schemata from the confirmed recoveries that no schema supported."""
        from agentguard.schemata.distillation.distiller import EmbeddedDistiller, FailureLocation
        from agentguard.schemata.model import SchemaOrigin

        schemata: dict[str, ErrorSchema] = {}
        for one in job.recoveries:
            is_suitable = one.outcome is RecoveryOutcome.CONFIRMED and one.plan.tier not in _EXCLUDED_TIERS
            branch = _reconstruct_branch(job.run, one) if is_suitable and not one.schemata else None
            if branch is None or len(schemata) >= _MAX_NEW_SCHEMATA:
                continue
            location = FailureLocation(
                step=one.plan.step, codes=one.plan.codes, origin=SchemaOrigin.RECOVERED
            )
            schema = EmbeddedDistiller().distill_step(branch, detect(branch).findings, location)
            if schema is not None:
                schemata[schema.id] = replace(schema, confirmed=1)
        return list(schemata.values())

    def _match_schemata(self, run: Trajectory, findings: Sequence[Finding]) -> dict[int, tuple[Match, float]]:
        """Return the matching schema and its weight in log-odds by the index of the step."""
        from agentguard.schemata.cache_policy import compute_mean_success_rate
        from agentguard.schemata.profiles.step_profile import profile_steps

        profiles = profile_steps(run, findings)
        excluded_groups = () if self.allow_same_task else (run.task,)
        found = self.cache.index.search(profiles, _MAX_MATCHES, excluded_groups=excluded_groups)
        best = [
            max(each, key=lambda one: one.similarity * compute_mean_success_rate(one.schema), default=None)
            for each in found
        ]
        similarities = [0.0 if one is None else one.similarity for one in best]
        mean = sum(similarities) / max(1, len(similarities))
        deviation = math.sqrt(sum((one - mean) ** 2 for one in similarities) / max(1, len(similarities)))
        matches: dict[int, tuple[Match, float]] = {}
        for profile, match in zip(profiles, best, strict=True):
            if match is None or profile.step is None or not self._is_match(match):
                continue
            score = (match.similarity - mean) / deviation if deviation > 1e-9 else 0.0
            if score >= 0:
                matches[profile.step] = match, score * (2 * compute_mean_success_rate(match.schema) - 1)
        return matches

    def _is_match(self, match: Match) -> bool:
        """Return whether the match is close enough to merge and the schema is not mostly refuted."""
        is_close = 1 - match.similarity <= self.cache.policy.novelty_threshold
        return is_close and match.schema.confirmed >= match.schema.refuted


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
    """Return the run at the time of the plan of a recovery; None if its branch is incomplete."""
    plan = recovery.plan
    if not plan.undone:
        steps = run.steps[: recovery.at_step]
        return replace(run, steps=steps, branches=()) if plan.step < len(steps) else None
    back = get_resume_step(recovery)
    for branch in run.branches:
        if branch.parent is None and branch.fork_step == back and branch.reason == plan.reason:
            steps = (*run.steps[:back], *branch.steps)
            is_complete = len(run.steps) >= back and plan.step < len(steps)
            return replace(run, steps=steps, branches=()) if is_complete else None
    return None


def build_schema_feedback(
    source: str | Path | bool | SchemaFeedback | None, store: Store | None
) -> SchemaFeedback | None:
    """Return the schema feedback of a guard; None if the guard uses no schemata.

    Args:
        source: file or database of schemata. True selects the guard's store, else the default store, else
            memory. None selects the guard's store, if there is one. False selects nothing.
        store: the guard's store.

    Raises:
        FormatError: the file does not contain schemata.
    """
    if isinstance(source, SchemaFeedback):
        return source
    if source is False or (source is None and store is None):
        return None
    if source is None or source is True:
        return SchemaFeedback(LazySchemaStore(store))
    from agentguard.schemata.persistence import FileSchemaStore, is_database

    if is_database(source):
        return SchemaFeedback(LazySchemaStore(source))
    from agentguard.schemata.live_cache import SchemaCache

    return SchemaFeedback(SchemaCache(FileSchemaStore(source)))
