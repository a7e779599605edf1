"""Guard: composition of detectors, localizer and recovery.

`Guard.diagnose` detects and localizes failures of a recorded run. The guard also recovers a running agent:
the integration requests a `Session` for the run. If a part of the guard fails, the failure is recorded and
the diagnosis continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from agentguard.config.policy import Policy
from agentguard.config.prices import PriceTable
from agentguard.errors import ConfigError
from agentguard.judge.response_safety import ResponseSafety
from agentguard.localize.base import Diagnosis, Localizer, SimpleLocalizer
from agentguard.recover.acceptance.base import AcceptanceFunction
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.effect_store import EffectStore, SqlEffectStore
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.strategy import RepairFunction
from agentguard.recover.tool_effects import EffectClass, Reconcile, ToolEffect, Undo
from agentguard.runtime.error_schema_feedback import SchemaFeedback, build_schema_feedback
from agentguard.runtime.guard_components import (
    REPLACEABLE_COMPONENTS,
    DetectorOptions,
    GuardComponents,
    attach_session_config,
    build_tool_effect,
    resolve_localizer,
    validate_detectors,
)
from agentguard.runtime.integration_registry import IntegrationMethods
from agentguard.runtime.live_judge import LiveJudge
from agentguard.runtime.policy_factory import (
    build_acceptance_test,
    build_live_judge,
    build_policy_judge,
    build_policy_localizer,
    build_recovery_policy,
    build_response_safety,
    select_detectors,
)
from agentguard.runtime.resumption import (
    list_recoveries,
    restore_session,
    resume_stored_run,
    start_stored_run,
)
from agentguard.runtime.run_diagnosis import RunDiagnosis
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import RecoveryObserver, RunEndObserver, SessionConfig
from agentguard.trajectory.costs import price_run
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

_CLOSE_TIMEOUT_S: Final = 60.0


class Guard(IntegrationMethods):
    """Guard that diagnoses recorded runs and recovers live ones, with one set of detectors and one localizer.

    Args:
        detectors: options of each detector by name (None for the defaults); None runs all detectors.
        localizer: name of a registered localizer, or an object with a ``locate`` method. A localizer that
            needs training must be passed as a trained object.
        options: options of a localizer that is given by name.
        detector_deadline_s: seconds a detector may use for one step before it counts as failed.
        recover: recovery policy for failures of a running agent.
        tools: declared effects of the agent's tools; the decorator `tool` declares them at their definition.
        accept: acceptance test of a run that is about to end: True accepts, False or a reason refuses.
        safety: assessment of the agent's final message in four tiers, each with an action
            (`agentguard.judge.response_safety.ResponseSafety`); in recorded runs, of the messages that users
            saw.
        observers: callbacks for recoveries, called when one begins and when its outcome is known.
        run_observers: callbacks for the end of a run, with the run and its findings, such as
            `agentguard.bundles.BundleFolder`.
        store: store to which the guard writes runs, findings, recoveries and effects as they happen. A
            background thread diagnoses each run that has ended and writes its diagnosis there.
        repair: custom repair for ``roll_forward``. It receives the run and the hypothesis, and returns the
            field of the step and its new text, or None.
        schemata: schemata of earlier failures, which support diagnoses and recoveries and are updated by the
            outcomes of recoveries. None uses those of ``store``, if there is one; True also uses those of the
            default store, if it exists, else memory; False uses none. It may also be a schema file, a
            database, or a `agentguard.runtime.error_schema_feedback.SchemaFeedback`.
        live_judge: judge that classifies new steps while the agent runs.
        tool_timeout_s: seconds after which the guard interrupts a tool, unless its declaration has another
            timeout; None for no limit. See `agentguard.runtime.tool_timeout`.
        prices: prices of the models, from which the guard computes costs that a run does not record.

    Raises:
        ConfigError: an option of a detector or a strategy is wrong, or the localizer needs training.
        UnknownPlugin: there is no detector, localizer or strategy with that name.
        ModelFileError: the model file of the embedded judge is missing or was changed.
    """

    def __init__(
        self,
        *,
        detectors: DetectorOptions | None = None,
        localizer: str | Localizer | SimpleLocalizer = "embedded",
        options: Mapping[str, Any] | None = None,
        detector_deadline_s: float = 0.5,
        recover: RecoveryPolicy | None = None,
        tools: Mapping[str, ToolEffect] | None = None,
        accept: AcceptanceFunction | None = None,
        safety: ResponseSafety | None = None,
        observers: Sequence[RecoveryObserver] = (),
        run_observers: Sequence[RunEndObserver] = (),
        store: Store | None = None,
        repair: RepairFunction | None = None,
        schemata: str | Path | bool | SchemaFeedback | None = None,
        live_judge: LiveJudge | None = None,
        tool_timeout_s: float | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        if isinstance(store, (str, Path)):
            raise ConfigError(f"store: open it first: Guard(store=Store.open({str(store)!r}))")
        self._override: ContextVar[GuardComponents | None] = ContextVar("agentguard_override", default=None)
        self._tools = dict(tools or {})
        self._components = attach_session_config(
            GuardComponents(
                detectors=validate_detectors(detectors),
                localizer=resolve_localizer(localizer, options or {}),
                detector_deadline_s=detector_deadline_s,
                recover=recover or RecoveryPolicy(),
                accept=accept,
                safety=safety,
                observers=tuple(observers),
                run_observers=tuple(run_observers),
                store=store,
                repair=repair,
                schemata=build_schema_feedback(schemata, store),
                live_judge=live_judge,
                tool_timeout_s=tool_timeout_s,
                prices=dict(prices or {}),
            )
        )

    @classmethod
    def from_policy(
        cls,
        policy: str | Path | Policy,
        *,
        localizer: str | Localizer | SimpleLocalizer | None = None,
        **more: Any,
    ) -> Guard:
        """Build a guard from a policy or from its YAML file.

        Args:
            policy: the policy, or the path of its file.
            localizer: localizer that replaces the policy's.
            more: further arguments of the class. ``observers``, ``store`` and ``repair`` cannot be set in a
                file; ``accept``, ``safety`` and ``schemata`` replace the policy's.

        Raises:
            ConfigError: as for the class; also if response safety would act on a single judge.
            MissingExtra: the policy has a judge, and the openai package is not installed.
        """
        settings = policy if isinstance(policy, Policy) else Policy.load(policy)
        has_live_judge = settings.judge is not None and settings.judge.live is not None
        needs_judge = (
            localizer is None
            or settings.safety is not None
            or settings.acceptance is not None
            or has_live_judge
        )
        schemata = build_schema_feedback(more.pop("schemata", settings.schemata), more.get("store"))
        judge = build_policy_judge(settings, more.get("store"), schemata) if needs_judge else None
        chosen = localizer or build_policy_localizer(settings, judge)
        tools = {name: build_tool_effect(**one.model_dump()) for name, one in settings.tools.items()}
        return cls(
            detectors=select_detectors(settings),
            localizer=chosen,
            detector_deadline_s=settings.detector_deadline_s,
            recover=build_recovery_policy(settings),
            tools=tools | dict(more.pop("tools", {})),
            **{
                "schemata": schemata or False,
                "accept": build_acceptance_test(settings, judge),
                "safety": build_response_safety(settings, judge),
                "live_judge": build_live_judge(settings, judge),
                "prices": settings.prices,
                "tool_timeout_s": settings.tool_timeout_s,
                **more,
            },
        )

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs that have ended are diagnosed; return False after the timeout."""
        return self.components.diagnosis_queue.flush(timeout_s)

    def close(self) -> None:
        """Diagnose the runs that have ended, then close the judges of localizer, safety and acceptance test.

        A later diagnosis opens the judges again.
        """
        self.flush(_CLOSE_TIMEOUT_S)
        self.components.localizer.close()
        acceptance = self._run_diagnosis.acceptance
        for judges in (self.components.safety, self.components.live_judge, acceptance):
            if judges is not None:
                judges.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def components(self) -> GuardComponents:
        """Components in effect; inside an override, those of the override."""
        return self._override.get() or self._components

    @property
    def detectors(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Options of each detector by name; None means all detectors with their defaults."""
        return self.components.detectors

    @property
    def localizer(self) -> Localizer:
        """Localizer that ranks the steps."""
        return self.components.localizer

    @property
    def tools(self) -> Mapping[str, ToolEffect]:
        """Declared effects of the tools, by name."""
        return dict(self._tools)

    @contextmanager
    def override(self, **changes: Any) -> Iterator[Guard]:
        """Use other components inside the ``with`` block, in this thread or task only.

        A live run keeps the components with which it began.

        Args:
            changes: any of ``detectors``, ``localizer``, ``detector_deadline_s``, ``recover``, ``accept``,
                ``safety``, ``observers``, ``store``, ``repair``, ``schemata`` and ``live_judge``, as for the
                class.

        Raises:
            ConfigError: a component is unknown or its value is wrong.
        """
        unknown = set(changes) - REPLACEABLE_COMPONENTS
        if unknown:
            raise ConfigError(f"override: unknown component {', '.join(sorted(unknown))}")
        if "detectors" in changes:
            changes["detectors"] = validate_detectors(changes["detectors"])
        if "localizer" in changes:
            changes["localizer"] = resolve_localizer(changes["localizer"], {})
        if "schemata" in changes:
            changes["schemata"] = build_schema_feedback(
                changes["schemata"], changes.get("store", self.components.store)
            )
        token = self._override.set(attach_session_config(replace(self.components, **changes)))
        try:
            yield self
        finally:
            self._override.reset(token)

    def tool(
        self,
        *,
        effect: str | EffectClass,
        undo: Undo | None = None,
        reconcile: Reconcile | None = None,
        idempotency_key: str | Sequence[str] = (),
        idempotent: bool = False,
        repeatable: bool = False,
        timeout_s: float | None = None,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Declare the effect of a tool with a decorator, which returns the function unchanged.

        Args:
            effect: ``read``, ``write`` or ``destructive``.
            undo: function that undoes a call; it receives the arguments of the call as keywords.
            reconcile: function that finds out whether a call with unknown outcome took effect. It receives
                the arguments of the call as keywords, and returns the result, or None without an effect.
            idempotency_key: name or names of the arguments that identify an effect; by default all arguments.
            idempotent: whether a repeated call with the same arguments changes nothing more.
            repeatable: whether equal calls in one run are intended, each with its own effect.
            timeout_s: seconds after which the guard interrupts a call; by default the guard's.
            name: name of the tool; by default that of the function.

        Raises:
            ConfigError: the effect is unknown, or the timeout is not positive.
        """
        key = (idempotency_key,) if isinstance(idempotency_key, str) else tuple(idempotency_key)
        known = build_tool_effect(
            effect=effect,
            idempotent=idempotent,
            repeatable=repeatable,
            key=key,
            undo=undo,
            reconcile=reconcile,
            timeout_s=timeout_s,
        )

        def declare(function: F) -> F:
            self._tools[name or function.__name__] = known
            return function

        return declare

    def diagnose(self, trajectory: Trajectory, *, failed: bool | None = None) -> Diagnosis:
        """Return the diagnosis of a recorded run; does not raise on any valid trajectory.

        Args:
            trajectory: the run.
            failed: known outcome. Without it, declared acceptance rules decide the outcome, if there are any.
        """
        return self._run_diagnosis.diagnose(price_run(trajectory, self.components.prices), failed=failed)

    @property
    def _run_diagnosis(self) -> RunDiagnosis:
        config = cast(SessionConfig, self.components.session_config)
        return cast(RunDiagnosis, config.run_diagnosis)

    def session(
        self,
        meta: Trajectory,
        capabilities: Capabilities,
        *,
        effect_store: EffectStore | None = None,
        recorder: RunRecorder | None = None,
        resume: bool = False,
    ) -> Session:
        """Return a new session for a run; integrations call this method.

        Args:
            meta: the run without its steps: id, task, tools, system prompts.
            capabilities: abilities of the integration.
            effect_store: storage of the effects; by default the guard's store, or memory without a store.
            recorder: recorder of the steps; by default one for the guard's store, or memory without a store.
            resume: continue the run with this id, if it is in the store, with its steps, effects and
                recoveries.

        Raises:
            ConfigError: ``resume`` without a store.
            StoreUnavailable: the store cannot be read to resume from it.
        """
        components = self.components
        config, store = cast(SessionConfig, components.session_config), components.store
        if store is None and resume:
            raise ConfigError("resume: the guard has no store to resume a run from")
        schemata = components.schemata
        if schemata is not None and schemata.clock() >= schemata.next_look_at:
            schemata.prepare()
        ended = False
        if store is not None:
            effect_store = effect_store if effect_store is not None else SqlEffectStore(store, meta.id)
            if recorder is None:
                recorder, ended = (
                    resume_stored_run(store, meta) if resume else (start_stored_run(store, meta), False)
                )
        session = Session(
            config, meta, capabilities, ledger=EffectLedger(effect_store, self._tools), recorder=recorder
        )
        if store is not None:
            session.unit_of_work, session.has_ended = store.unit_of_work, ended
            if resume:
                restore_session(session, list_recoveries(store, meta.id))
        return session


def diagnose(trajectory: Trajectory, *, method: str = "embedded") -> Diagnosis:
    """Diagnose one recorded run with all detectors and the localizer ``method``.

    Args:
        trajectory: the run, e.g. ``agentguard.load_trajectory("run.json")``.
        method: a registered localizer that needs no training.

    Returns:
        The diagnosis: verdict, probability that the run failed, ranked hypotheses and findings.

    Raises:
        UnknownPlugin, ConfigError, ModelFileError: as `Guard` does.
    """
    guard = _GUARDS.get(method) or _GUARDS.setdefault(method, Guard(localizer=method))
    return guard.diagnose(trajectory)


_GUARDS: dict[str, Guard] = {}
"""One guard per method, so that the model file is loaded once."""
