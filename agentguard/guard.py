"""The one place that composes the rooms: what happened, did it fail, which step, what now.

Over a recorded run a guard detects and localizes (`Guard.diagnose`). Inside a running agent it also recovers:
each integration asks it for a `Session` of its run. A part that fails is noted; it never aborts a diagnosis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from agentguard.config.policy import Policy
from agentguard.detect.base import DetectorFailure, Finding
from agentguard.detect.runner import detect
from agentguard.errors import ConfigError
from agentguard.judge.response_safety import ResponseSafety
from agentguard.localize.base import Diagnosis, Localizer, Verdict
from agentguard.localize.llm.safety_findings import add_safety_findings
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger, EffectStore
from agentguard.recover.effect_store import SqlEffectStore
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.strategy import RepairFunction
from agentguard.recover.tool_effects import EffectClass, ToolEffect, Undo
from agentguard.runtime.components import (
    REPLACEABLE_COMPONENTS,
    DetectorOptions,
    GuardComponents,
    attach_session_config,
    build_localizer,
    build_policy_judge,
    build_policy_localizer,
    build_recovery_policy,
    build_response_safety,
    build_tool_effect,
    select_detectors,
    validate_detectors,
)
from agentguard.runtime.integration_registry import integration_registry
from agentguard.runtime.resumption import (
    list_recoveries,
    restore_session,
    resume_stored_run,
    start_stored_run,
)
from agentguard.runtime.schema_feedback import SchemaFeedback, build_schema_feedback
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import AcceptanceFunction, RecoveryObserver, SessionConfig
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])


class Guard:
    """Diagnoses runs, and guards them while they go on, with one set of detectors and one localizer.

    Args:
        detectors: detector name to its options (None for the defaults); None runs all with their defaults.
        localizer: name of a registered localizer, or an object that has ``locate``. A localizer that must be
            trained first is given fitted.
        options: options of the localizer, where it is named.
        detector_deadline_s: seconds a detector may take over one step before it counts as failed.
        recover: what is done about failures of a running agent.
        tools: what the tools of an agent do to the world; `tool` declares them where they are defined.
        accept: acceptance test of a run that wants to end: True accepts, False or a reason refuses.
        safety: assesses what an agent says in the end, in four tiers with an action each
            (`agentguard.judge.response_safety.ResponseSafety`); of recorded runs, what users saw.
        observers: called when a recovery begins and when its outcome is known.
        store: where guarded runs, their findings, recoveries and effects are kept, as they happen.
        repair: what ``roll_forward`` asks for a repair: given the run and what is held to be wrong, it
            returns the field of that step and the text to put there, or None.
        schemata: let schemata of earlier failures speak where a running agent is recovered, and learn from
            what comes of it: a file or a database of schemata, True for the guard's store (or memory, if it
            has none), or a `agentguard.runtime.schema_feedback.SchemaFeedback`.

    Raises:
        ConfigError: an option of a detector or a strategy is wrong, or the localizer must be fitted first.
        UnknownPlugin: there is no detector, localizer or strategy of that name.
        ModelFileError: the embedded judge's model file is missing or was changed.
    """

    def __init__(
        self,
        *,
        detectors: DetectorOptions | None = None,
        localizer: str | Localizer = "embedded",
        options: Mapping[str, Any] | None = None,
        detector_deadline_s: float = 0.5,
        recover: RecoveryPolicy | None = None,
        tools: Mapping[str, ToolEffect] | None = None,
        accept: AcceptanceFunction | None = None,
        safety: ResponseSafety | None = None,
        observers: Sequence[RecoveryObserver] = (),
        store: Store | None = None,
        repair: RepairFunction | None = None,
        schemata: str | Path | bool | SchemaFeedback = False,
    ) -> None:
        chosen = build_localizer(localizer, options or {}) if isinstance(localizer, str) else localizer
        self._override: ContextVar[GuardComponents | None] = ContextVar("agentguard_override", default=None)
        self._tools = dict(tools or {})
        self._components = attach_session_config(
            GuardComponents(
                detectors=validate_detectors(detectors),
                localizer=chosen,
                detector_deadline_s=detector_deadline_s,
                recover=recover or RecoveryPolicy(),
                accept=accept,
                safety=safety,
                observers=tuple(observers),
                store=store,
                repair=repair,
                schemata=build_schema_feedback(schemata, store),
            )
        )

    @classmethod
    def from_policy(
        cls, policy: str | Path | Policy, *, localizer: str | Localizer | None = None, **more: Any
    ) -> Guard:
        """Make a guard from a policy or the YAML file of one.

        Args:
            policy: the policy, or the path of its file.
            localizer: outranks the policy's.
            more: ``accept``, ``observers``, ``tools``, ``store`` and ``repair``, which no file can hold, and
                ``safety`` and ``schemata``, which outrank the policy's; as for the class itself.

        Raises:
            ConfigError: also where the policy's safety would act on one judge's word alone.
            MissingExtra: the policy has a judge, and the openai package is not installed.
        """
        settings = policy if isinstance(policy, Policy) else Policy.load(policy)
        judge = build_policy_judge(settings) if localizer is None or settings.safety is not None else None
        chosen = localizer or build_policy_localizer(settings, judge)
        tools = {name: build_tool_effect(**one.model_dump()) for name, one in settings.tools.items()}
        return cls(
            detectors=select_detectors(settings),
            localizer=chosen,
            detector_deadline_s=settings.detector_deadline_s,
            recover=build_recovery_policy(settings),
            tools=tools | dict(more.pop("tools", {})),
            **{"schemata": settings.schemata, "safety": build_response_safety(settings, judge), **more},
        )

    def close(self) -> None:
        """Close the connections of the judges that localizer and safety ask; a later question opens them."""
        from agentguard.judge.factory import close_judge

        for part in (self.components.localizer, self.components.safety):
            close_judge(getattr(part, "judge", None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def components(self) -> GuardComponents:
        """Components in effect: those of the override inside an override."""
        return self._override.get() or self._components

    @property
    def detectors(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Detector name to its options; None is all with their defaults."""
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
        """Use other parts inside the ``with`` block, in this thread or task alone.

        Args:
            changes: any of ``detectors``, ``localizer``, ``detector_deadline_s``, ``recover``, ``accept``,
                ``safety``, ``observers``, ``store``, ``repair``, ``schemata``, as for the class itself; a run
                that is going on keeps what it began with.

        Raises:
            ConfigError: there is no such part, or it is wrong.
        """
        unknown = set(changes) - REPLACEABLE_COMPONENTS
        if unknown:
            raise ConfigError(f"override: no part is called {', '.join(sorted(unknown))}")
        if "detectors" in changes:
            changes["detectors"] = validate_detectors(changes["detectors"])
        if isinstance(changes.get("localizer"), str):
            changes["localizer"] = build_localizer(changes["localizer"], {})
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
        idempotency_key: str | Sequence[str] = (),
        idempotent: bool = False,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Declare what a tool does, where it is defined; the function itself is returned unchanged.

        Args:
            effect: read, write or destructive.
            undo: called with the arguments of the call as keywords, to undo it.
            idempotency_key: the argument, or arguments, that tell one effect from another; all if none.
            idempotent: calling it again with the same arguments changes nothing more.
            name: of the tool, where it is not the function's.

        Raises:
            ConfigError: there is no such effect.
        """
        key = (idempotency_key,) if isinstance(idempotency_key, str) else tuple(idempotency_key)
        known = build_tool_effect(effect=effect, idempotent=idempotent, key=key, undo=undo)

        def declare(function: F) -> F:
            self._tools[name or function.__name__] = known
            return function

        return declare

    def diagnose(self, trajectory: Trajectory) -> Diagnosis:
        """Return the diagnosis of a recorded run; does not raise on any valid trajectory."""
        parts = self.components
        start = time.perf_counter()
        detection = detect(trajectory, parts.detectors, deadline_s=parts.detector_deadline_s)
        detected = time.perf_counter()
        localizer = cast(Localizer, cast(SessionConfig, parts.session_config).offline_localizer)
        diagnosis = _locate(localizer, trajectory, detection.findings)
        located = time.perf_counter()
        timing = {"detect_s": detected - start, "localize_s": located - detected}
        failures = (*detection.failures, *diagnosis.failures)
        diagnosis = replace(diagnosis, findings=tuple(detection.findings), failures=failures)
        if isinstance(parts.safety, ResponseSafety):
            diagnosis = add_safety_findings(diagnosis, trajectory, parts.safety)
            timing["safety_s"] = time.perf_counter() - located
        return replace(diagnosis, timing=timing | {"total_s": time.perf_counter() - start})

    def session(
        self,
        meta: Trajectory,
        capabilities: Capabilities,
        *,
        effect_store: EffectStore | None = None,
        recorder: RunRecorder | None = None,
        resume: bool = False,
    ) -> Session:
        """Begin to guard a run; integrations call this.

        Args:
            meta: the run without its steps: id, task, tools, system prompts.
            can: what the integration can do.
            book: where effects are kept; the guard's store if absent, memory if it has none.
            recorder: keeps the steps; the guard's store if absent, memory if it has none.
            resume: continue the run with that id, if the store has it: with its steps, its effects, what its
                recoveries have cost and how they ended.

        Raises:
            ConfigError: ``resume`` without a store.
            StoreUnavailable: the store cannot be read to resume from it.
        """
        rules, store = cast(SessionConfig, self.components.session_config), self.components.store
        if store is None and resume:
            raise ConfigError("resume: the guard has no store to resume a run from")
        ended = False
        if store is not None:
            effect_store = effect_store if effect_store is not None else SqlEffectStore(store, meta.id)
            if recorder is None:
                recorder, ended = (
                    resume_stored_run(store, meta) if resume else (start_stored_run(store, meta), False)
                )
        session = Session(
            rules, meta, capabilities, ledger=EffectLedger(effect_store, self._tools), recorder=recorder
        )
        if store is not None:
            session.unit_of_work, session.has_ended = store.unit_of_work, ended
            if resume:
                restore_session(session, list_recoveries(store, meta.id))
        return session

    def run(self, task: str, **options: Any) -> Any:
        """Guard a custom agent loop; see `agentguard.integrations.loop.run.LoopRun`."""
        return self.integrate("loop", task, **options)

    def langchain(self, **options: Any) -> Any:
        """Middleware for ``create_agent``.

        See `agentguard.integrations.langchain.middleware.GuardMiddleware`.
        """
        return self.integrate("langchain", **options)

    def langgraph(self, graph: Any, **options: Any) -> Any:
        """Guard the runs of a compiled graph; see `agentguard.integrations.langgraph.graph.GuardedGraph`."""
        return self.integrate("langgraph", graph, **options)

    def langgraph_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        """A tool node in which each effect happens once; see `agentguard.integrations.langgraph.graph`."""
        return self.integrate("langgraph_tools", tools, **options)

    def transport(self, **options: Any) -> Any:
        """A transport for OpenAI's client; see `agentguard.integrations.openai.transport.GuardTransport`."""
        return self.integrate("openai", **options)

    def atransport(self, **options: Any) -> Any:
        """As `transport`, for the asynchronous client."""
        return self.integrate("openai_async", **options)

    def pydantic_ai(self, **options: Any) -> Any:
        """Capability for ``Agent``; see `agentguard.integrations.pydantic_ai.capability.GuardCapability`."""
        return self.integrate("pydantic_ai", **options)

    @property
    def openai_agents(self) -> Any:
        """A runner of agents; see `agentguard.integrations.openai_agents.runner.GuardedRunner`."""
        return self.integrate("openai_agents")

    def integrate(self, framework: str, *args: Any, **options: Any) -> Any:
        """Make a framework's integration around this guard.

        Raises:
            UnknownPlugin: there is no integration of that name.
            MissingExtra: the framework is not installed.
        """
        return integration_registry().get(framework)(self, *args, **options)


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
"""One guard a method, so that the model file is loaded once."""


def _locate(localizer: Localizer, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
    try:
        return localizer.locate(trajectory, findings)
    except Exception as error:  # a plug-in may raise anything; the findings are still worth having
        failure = DetectorFailure(detector=localizer.name, step=None, error=type(error).__name__)
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=localizer.name,
            verdict=Verdict.ABSTAINED,
            probability=0.5,
            failures=(failure,),
            notes=(f"the localizer failed with {type(error).__name__}; the findings stand",),
        )
