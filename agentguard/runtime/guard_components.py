"""Components of a guard, and the session configuration built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from agentguard.config.prices import PriceTable
from agentguard.detect.base import Finding, detectors
from agentguard.detect.finding_rows import build_finding_rows
from agentguard.detect.runner import IncrementalRunner
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.judge.response_safety import (
    ResponseSafety,
    SafetyAction,
    format_trigger,
)
from agentguard.localize.base import Localizer, SimpleLocalizer, adapt_localizer, get_localizer_registry
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.recover.acceptance.base import (
    AcceptanceEvaluator,
    AcceptanceFunction,
    AcceptanceFunctionAdapter,
)
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.recovery_rows import to_recovery_row
from agentguard.recover.strategy import RepairFunction
from agentguard.recover.tool_effects import EffectClass, Reconcile, ToolEffect, Undo
from agentguard.runtime.background_queue import BackgroundQueue
from agentguard.runtime.live_judge import (
    SINGLE_JUDGE_ESCALATION,
    LiveJudge,
)
from agentguard.runtime.run_diagnosis import RunDiagnosis
from agentguard.runtime.session_config import (
    RecoveryObserver,
    RunEndObserver,
    SafetyAssessor,
    SessionConfig,
)
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.recover.acceptance.acceptance_test import AcceptanceTest
    from agentguard.runtime.error_schema_feedback import SchemaFeedback
    from agentguard.store.store import Store


_MAX_PENDING_DIAGNOSES: Final = 1_024


def _build_diagnosis_queue() -> BackgroundQueue:
    return BackgroundQueue("agentguard-diagnosis", max_jobs=_MAX_PENDING_DIAGNOSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardComponents:
    """Components of a guard; `agentguard.guard.Guard` describes them.

    `Guard.override` replaces some of them temporarily.
    """

    detectors: Mapping[str, Mapping[str, Any]] | None
    localizer: Localizer
    detector_deadline_s: float
    recover: RecoveryPolicy
    accept: AcceptanceFunction | None = None
    safety: SafetyAssessor | None = None
    observers: tuple[RecoveryObserver, ...] = ()
    run_observers: tuple[RunEndObserver, ...] = ()
    store: Store | None = None
    repair: RepairFunction | None = None
    schemata: SchemaFeedback | None = None
    live_judge: LiveJudge | None = None
    tool_timeout_s: float | None = None
    diagnosis_queue: BackgroundQueue = field(default_factory=_build_diagnosis_queue, compare=False)
    prices: PriceTable = field(default_factory=dict)
    session_config: SessionConfig | None = field(default=None, compare=False)


SAFETY_ESCALATIONS = {
    format_trigger(SafetyAction.CONDITION): "hint",
    format_trigger(SafetyAction.ESCALATE): ("escalate", "stop"),
    format_trigger(SafetyAction.BLOCK): "stop",
}
"""Default escalation policies of the actions of response safety; a recovery policy may replace them."""

REPLACEABLE_COMPONENTS = frozenset(GuardComponents.__slots__) - {"diagnosis_queue", "session_config"}
"""Names of the components that an override may replace."""


def attach_session_config(components: GuardComponents) -> GuardComponents:
    """Return the components with their session configuration.

    Raises:
        ConfigError: the recovery policy or the tool timeout is wrong.
        UnknownPlugin: no strategy has the name of an escalation level.
    """
    recover, specs, deadline = components.recover, components.detectors, components.detector_deadline_s
    if components.safety is not None:
        recover = replace(recover, escalations={**SAFETY_ESCALATIONS, **recover.escalations})
    if components.live_judge is not None and components.live_judge.is_single:
        recover = replace(
            recover,
            escalations={
                **recover.escalations,
                **dict.fromkeys(components.live_judge.triggers, SINGLE_JUDGE_ESCALATION),
            },
        )

    localizer = _recalibrate_localizer(components, components.localizer)
    immediate = components.localizer.immediate_localizer
    run_diagnosis = RunDiagnosis(
        detectors=specs,
        detector_deadline_s=deadline,
        localizer=localizer,
        build_failure_localizer=partial(_build_failure_localizer, components),
        safety=components.safety if isinstance(components.safety, ResponseSafety) else None,
        acceptance=_find_declared_test(components.accept),
        annotate_diagnosis=None if components.schemata is None else components.schemata.annotate_diagnosis,
    )
    store, observers, run_observers = components.store, components.observers, components.run_observers
    if store is not None:
        observers = (*observers, lambda recovery: _discard_receipt(store.write(to_recovery_row(recovery))))
        run_observers = (
            *run_observers,
            lambda run, findings: _discard_receipt(store.write(*build_finding_rows(run.id, findings))),
            _build_run_end_diagnosis(run_diagnosis, components.diagnosis_queue, store),
        )
    schemata = components.schemata
    if schemata is not None:
        observers = (*observers, schemata.record_recovery)
        run_observers = (*run_observers, schemata.record_run_end)
    session_config = SessionConfig(
        planner=recover.build_planner(),
        build_detector_runner=partial(IncrementalRunner.for_run, specs=specs, deadline_s=deadline),
        localizer=localizer
        if immediate is components.localizer
        else _recalibrate_localizer(components, immediate),
        run_diagnosis=run_diagnosis,
        prices=components.prices,
        tool_timeout_s=_validate_tool_timeout(components.tool_timeout_s),
        live_judge=components.live_judge,
        recovery_budget=recover.budget,
        verification=recover.verification,
        finding_threshold=recover.threshold,
        effect_threshold=recover.effect_threshold,
        acceptance_function=_build_acceptance(components),
        safety_assessor=components.safety,
        on_guard_error=recover.on_guard_error,
        redundancy=recover.redundancy,
        repair_function=components.repair,
        annotate_diagnosis=None if schemata is None else schemata.annotate_live_diagnosis,
        observers=observers,
        run_end_observers=run_observers,
    )
    return replace(components, session_config=session_config)


def _build_run_end_diagnosis(diagnosis: RunDiagnosis, jobs: BackgroundQueue, store: Store) -> RunEndObserver:
    """Return the observer that queues each run for a diagnosis, which is then written to the store."""
    store.register_producer(jobs)

    def diagnose(run: Trajectory) -> None:
        store.write(*build_diagnosis_rows(diagnosis.diagnose(run)))

    def enqueue(run: Trajectory, findings: Sequence[Finding]) -> None:
        del findings  # the diagnosis runs the detectors again, over the whole run
        if run.steps:
            jobs.put(partial(diagnose, run))

    return enqueue


def _build_acceptance(components: GuardComponents) -> AcceptanceEvaluator | None:
    """Return the acceptance test of sessions, if there is one; a store records its verdicts."""
    function = components.accept
    if function is not None and components.store is not None:
        from agentguard.recover.acceptance.acceptance_record import record_acceptance

        function = record_acceptance(function, components.store)
    return None if function is None else AcceptanceFunctionAdapter(function)


def _find_declared_test(function: AcceptanceFunction | None) -> AcceptanceTest | None:
    """Return the function if it is an `AcceptanceTest`, which a diagnosis may evaluate again."""
    if function is None:
        return None
    from agentguard.recover.acceptance.acceptance_test import AcceptanceTest

    return function if isinstance(function, AcceptanceTest) else None


def _recalibrate_localizer(components: GuardComponents, localizer: Localizer) -> Localizer:
    """Return the localizer; with a store, the feedback on diagnoses in the store recalibrates it."""
    if components.store is None:
        return localizer
    from agentguard.localize.recalibration import RecalibratedLocalizer

    return RecalibratedLocalizer(localizer, components.store)


def _build_failure_localizer(components: GuardComponents) -> Localizer:
    """Return the localizer for runs that are known to have failed."""
    from agentguard.localize.embedded import EmbeddedLocalizer

    localizer = components.localizer
    if isinstance(localizer, EmbeddedLocalizer):
        localizer = localizer.assume_failure()
    return _recalibrate_localizer(components, localizer)


def _discard_receipt(receipt: object) -> None:
    """Ignore the receipt of a background write: the run does not wait, and the store counts lost rows."""


DetectorOptions = Mapping[str, Mapping[str, Any] | None]


def build_localizer(name: str, options: Mapping[str, Any]) -> Localizer:
    """Return a localizer.

    Raises:
        ConfigError: the localizer needs training, or an option is wrong.
        UnknownPlugin: no localizer has that name.
    """
    localizer = get_localizer_registry().get(name)(**options)
    if not isinstance(localizer, SimpleLocalizer):
        raise ConfigError(f"localizer {name!r} needs training: pass a trained object, or set another one")
    return adapt_localizer(localizer)


def resolve_localizer(localizer: str | Localizer | SimpleLocalizer, options: Mapping[str, Any]) -> Localizer:
    """Return a complete localizer from a name and options, or from an object.

    Raises the errors of `build_localizer`.
    """
    return build_localizer(localizer, options) if isinstance(localizer, str) else adapt_localizer(localizer)


def build_tool_effect(
    *,
    effect: str,
    idempotent: bool,
    repeatable: bool,
    key: Sequence[str],
    undo: Undo | None = None,
    reconcile: Reconcile | None = None,
    timeout_s: float | None = None,
) -> ToolEffect:
    """Return the declaration of a tool's effect; the arguments are the attributes of `ToolEffect`.

    Raises:
        ConfigError: there is no effect class with that name, or the timeout is not a positive number.
    """
    if effect not in set(EffectClass):
        raise ConfigError(f"tool: effect is {effect!r}, expected one of {', '.join(EffectClass)}")
    return ToolEffect(
        effect=EffectClass(effect),
        idempotent=idempotent,
        repeatable=repeatable,
        undo=undo,
        key=tuple(key),
        reconcile=reconcile,
        timeout_s=_validate_tool_timeout(timeout_s),
    )


def _validate_tool_timeout(timeout_s: float | None) -> float | None:
    """Return the timeout of tools. Raises ConfigError unless it is None, or positive and finite."""
    if timeout_s is not None and not 0 < timeout_s < inf:
        raise ConfigError(f"tool timeout: {timeout_s!r} is not a positive number of seconds")
    return timeout_s


def validate_detectors(detector_options: DetectorOptions | None) -> dict[str, Mapping[str, Any]] | None:
    """Return the detectors with their options; None for all detectors with their defaults.

    Each detector is built once as a check of its options.

    Raises:
        ConfigError: an option is wrong.
        UnknownPlugin: no detector has a given name.
    """
    if detector_options is None:
        return None
    validated = {name: dict(options or {}) for name, options in detector_options.items()}
    for name, options in validated.items():
        try:
            detectors().get(name)(**options)
        except AgentGuardError:
            raise
        except TypeError as error:
            raise ConfigError(f"detector {name!r}: {error}") from None
    return cast("dict[str, Mapping[str, Any]]", validated)
