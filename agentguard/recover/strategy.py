"""Recovery strategies: the capabilities of an integration, the actions of a plan, and the strategy protocol.

A strategy never touches a framework. It reads a `RecoveryContext` and returns a `RecoveryPlan`: a tuple of
`RecoveryAction` values from a closed set, which the integration applies. A plan is data, so every recovery
can be recorded, replayed and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any, Literal, Protocol

from agentguard.detect.base import Evidence
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.plugins import Registry
from agentguard.recover.budget import BudgetAccount, BudgetUsage
from agentguard.recover.effect_ledger import Effect, EffectLedger
from agentguard.trajectory.model import Trajectory


class RecoveryTier(IntEnum):
    """How deep a recovery cuts; the planner takes the lowest that will do.

    T0 to T3 of the design are REJECT, TRUNCATE, FORK and COMPENSATE; the others lie around them. They are
    stored by name.
    """

    NUDGE = 0
    REPAIR = 1
    REJECT = 2
    TRUNCATE = 3
    FORK = 4
    COMPENSATE = 5
    SUBSTITUTE = 6
    RESTART = 7
    HAND_OVER = 8
    STOP = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an integration can do with a running agent.

    Attributes:
        send_message: add a message for the agent at a turn boundary.
        reject: drop the model's answer before it is committed, and request another.
        truncate: drop turns from the agent's view.
        fork: restore the state saved before a step, with all its channels.
        compensate: run the undo functions of tools.
        disable_tools: remove tools from the agent.
        substitute: replace a tool, an agent or a model with another.
        restart: run again with another initial input.
        repair: replace a state or an observation with a corrected one and continue.
        sample: request several candidates of one turn from the same model or from others.
        escalate: ask a person and wait.
        stop: end the run.
        persistent_view: a rewritten view must be rewritten again in each later request, as in a proxy.
        buffer_stream: tool calls in a stream can be held back until the verdict.
    """

    send_message: bool = True
    reject: bool = False
    truncate: bool = False
    fork: bool = False
    compensate: bool = False
    disable_tools: bool = False
    substitute: bool = False
    restart: bool = False
    repair: bool = False
    sample: bool = False
    escalate: bool = False
    stop: bool = True
    persistent_view: bool = False
    buffer_stream: bool = False

    def names(self) -> tuple[str, ...]:
        """What can be done, by name."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    """Add ``text`` for the agent at the next boundary."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Drop the answer that is not committed yet and ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Leave the live line before ``to_step``: by cutting the messages, or by restoring the saved state."""

    to_step: int
    by: Literal["truncate", "fork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensate:
    """Undo these effects, the latest first."""

    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DisableTools:
    """Take these tools away for the rest of the run."""

    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """Let ``by`` take the place of ``name``."""

    what: Literal["tool", "agent", "model"]
    name: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Begin the run again; ``note`` is added to the task, so that the initial input is another one."""

    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Put a corrected text in place of a field of a step, and go on; see `agentguard.recover.call_repair`.

    Attributes:
        step: which one, from 0.
        field: as `Step.texts` names it. Of a turn whose tools have not run: ``content``, ``tool_calls[i]``
            (the arguments, as JSON) or ``tool_calls[i].name``; of a committed step: ``observations[i]``.
        text: what takes its place.
    """

    step: int
    field: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVariant:
    """How one candidate is asked for; what is left out is as it was for the proposed turn.

    Attributes:
        model: name of the model to ask.
        instruction: text added after the other messages, for this candidate only.
        temperature: sampling temperature.
    """

    model: str = ""
    instruction: str = ""
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Ask for candidates of one turn, the proposed one the first, and take one that ``quorum`` agree on.

    Attributes:
        n: candidates at most, the proposed one among them.
        quorum: how many must agree; with 1 the first that is acceptable is taken.
        models, tells, temperatures: how the candidates after the proposed one are asked for, each list begun
            anew at its end; empty is as the proposed one was.
        staged: ask for no more candidates at a time than may decide it.
        ignore: names of arguments in which candidates may differ.
    """

    n: int
    quorum: int
    models: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()
    staged: bool = True
    ignore: tuple[str, ...] = ()

    def build_variants(self) -> tuple[SampleVariant, ...]:
        """How the candidates after the proposed one are asked for: ``n - 1`` of them."""
        return tuple(
            SampleVariant(
                model=self.models[i % len(self.models)] if self.models else "",
                instruction=self.tells[i % len(self.tells)] if self.tells else "",
                temperature=self.temperatures[i % len(self.temperatures)] if self.temperatures else None,
            )
            for i in range(self.n - 1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalate:
    """Ask a person; the run waits."""

    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the run."""

    reason: str


RecoveryAction = (
    SendMessage
    | Reject
    | Rewind
    | Compensate
    | DisableTools
    | Substitute
    | Restart
    | Repair
    | Sample
    | Escalate
    | Stop
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """What to do about a failure.

    Attributes:
        strategy: name of the strategy that made it.
        tier: how deep it cuts.
        actions: what the integration does, in order.
        step: the step held to be the root cause, from 0.
        hypothesis: its rank in the diagnosis, from 0.
        codes: what is held to have gone wrong there.
        reason: why, in a sentence for a person.
        evidence: quotes from the run.
        undone: steps of the live line that are lost by it: its price in work.
        schemata: ids of the schemata that spoke for the hypothesis.
    """

    strategy: str
    tier: RecoveryTier
    actions: tuple[RecoveryAction, ...]
    step: int
    hypothesis: int = 0
    codes: tuple[str, ...] = ()
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    undone: int = 0
    schemata: tuple[str, ...] = ()


RepairFunction = Callable[[Trajectory, Hypothesis], tuple[str, str] | None]
"""Given the run, its last step perhaps not committed, and what is held to be wrong: a field of that step and
the text to put in its place, or None. `Repair` says which fields there are."""


class RecoveryOutcome(StrEnum):
    """Whether a recovery helped."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A plan that was carried out.

    Attributes:
        run: id of the run.
        id: unique within the run, in order of time.
        plan: what was done.
        trigger: name of the detector that set it off, or ``"diagnosis"``.
        at_step: length of the live line when it was done.
        outcome: pending until `verify` has seen enough.
        cost: what was thrown away for it: ``steps``, ``tokens``, model ``calls``, ``seconds`` of wall time,
            and what a strategy adds, such as ``tool_calls``.
        schemata: ids of the schemata that spoke for the hypothesis; they learn from the outcome.
        spent: what all recoveries of the run had cost by then; a run that is gone on with counts from there.
    """

    run: str = ""
    id: int
    plan: RecoveryPlan
    trigger: str
    at_step: int
    outcome: RecoveryOutcome = RecoveryOutcome.PENDING
    cost: Mapping[str, float] = field(default_factory=dict)
    schemata: tuple[str, ...] = ()
    spent: BudgetUsage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """What a strategy may look at.

    Attributes:
        run: the live line so far, its branches with it.
        diagnosis: what is held to have gone wrong; has at least one hypothesis.
        capabilities: what the integration can do.
        account: what may still be spent.
        ledger: the effects of the tools.
        hypothesis_rank: rank of the hypothesis to act on, from 0.
        past_recoveries: recoveries of this run, the earliest first.
        is_committed: False while the tool calls of the last step have not run; that step can be rejected.
        repair_function: the user's repair function, if any.
        restorable_steps: steps before which a state was saved that a fork can restore, the earliest first;
            None if every step has one.
    """

    run: Trajectory
    diagnosis: Diagnosis
    capabilities: Capabilities
    account: BudgetAccount
    ledger: EffectLedger
    hypothesis_rank: int = 0
    past_recoveries: tuple[Recovery, ...] = ()
    is_committed: bool = True
    repair_function: RepairFunction | None = None
    restorable_steps: tuple[int, ...] | None = None

    def find_restorable_step(self, step: int) -> int | None:
        """The boundary a fork goes to that is to undo ``step``: the nearest one at or before it."""
        if self.restorable_steps is None:
            return step
        return max((one for one in self.restorable_steps if one <= step), default=None)

    @property
    def hypothesis(self) -> Hypothesis:
        """The hypothesis to act on."""
        return self.diagnosis.hypotheses[self.hypothesis_rank]

    @property
    def last_step(self) -> int:
        """Index of the last step of the live line."""
        return len(self.run.steps) - 1


class SimpleStrategy(Protocol):
    """Minimal plug-in strategy; `agentguard.recover.adapter` completes it to a `RecoveryStrategy`."""

    @property
    def name(self) -> str:
        """Name under which the strategy is registered, and that escalation policies use."""
        ...

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Return a plan; None if the strategy cannot help or the integration lacks a capability for it."""
        ...


class RecoveryStrategy(Protocol):
    """Strategy of recovery. `BaseStrategy` has defaults for all members but ``name`` and ``plan``."""

    @property
    def name(self) -> str:
        """Name under which the strategy is registered, and that escalation policies use."""
        ...

    @property
    def min_confidence(self) -> float:
        """Probability of a finding from which the strategy acts, even below the policy's threshold.

        With 1, the default, the policy's threshold alone decides.
        """
        ...

    @property
    def max_attempts(self) -> int:
        """Number of times that the planner selects the same plan without success; 1 by default."""
        ...

    @property
    def sample(self) -> Sample | None:
        """Candidates that the plans request; None, the default, if they request none."""
        ...

    @property
    def repairs_calls(self) -> bool:
        """True if candidates of a vote are repaired before they are compared; False by default."""
        ...

    @property
    def retries_reads(self) -> bool:
        """True if failed calls of read-only tools are made once more; False by default."""
        ...

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Return a plan; None if the strategy cannot help or the integration lacks a capability for it."""
        ...

    def accept(self, run: Trajectory) -> bool | str:
        """Return True if the last step of ``run``, a candidate, is acceptable, else False or the reason.

        The default accepts all candidates.
        """
        ...


class RecoveryStrategyFactory(Protocol):
    """Makes a strategy from its options."""

    def __call__(self, **options: Any) -> RecoveryStrategy | SimpleStrategy:
        """Raise ConfigError on an option that does not exist or is out of its range."""
        ...


def strategies() -> Registry[RecoveryStrategyFactory]:
    """The registry of strategies: those in ``agentguard.recover.strategies`` and installed ones."""
    return _REGISTRY


def _load_builtin_targets() -> dict[str, str]:
    from agentguard.recover.strategies import BUILTIN_STRATEGIES

    return dict(BUILTIN_STRATEGIES)


_REGISTRY: Registry[RecoveryStrategyFactory] = Registry(
    "strategy", group="agentguard.strategies", builtin=_load_builtin_targets()
)
