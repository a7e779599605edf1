"""Replay of a bundle: the agent's code runs again with recorded model answers and tool results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from agentguard.bundles.bindings import RecordableAgent, call_agent
from agentguard.bundles.bundle import Bundle, build_event_log, encode_effects
from agentguard.bundles.call_recorder import list_session_effects
from agentguard.bundles.call_replayer import CallReplayer
from agentguard.bundles.network_block import block_network
from agentguard.bundles.replay_scope import ReplayEdit, ReplayMode, build_scope
from agentguard.bundles.run_difference import Divergence, find_divergence, find_field
from agentguard.quantity import format_quantity
from agentguard.trajectory.model import Record, Step, Trajectory
from agentguard.trajectory.redaction import Redactor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Outcome of a replay.

    Attributes:
        trajectory: the replayed run, without secrets.
        is_equal: whether its event log has the same bytes as the recorded one.
        divergence: first step that differs; None if all steps are equal.
        unused_calls: number of recorded calls that the agent did not repeat.
        effects_divergence: position and field of the first effect that differs from the recorded ledger; None
            if all effects are equal or the bundle has no ledger.
        missing_error: class of the expected exception if the agent ends without it; else empty.
    """

    trajectory: Trajectory
    is_equal: bool
    divergence: Divergence | None
    unused_calls: int
    effects_divergence: str | None = None
    missing_error: str = ""

    @property
    def difference(self) -> str:
        """Description of the first difference from the recording; empty without one."""
        if self.divergence is not None:
            place = f" in {self.divergence.field}" if self.divergence.field else ""
            return f"step {self.divergence.step} differs{place}"
        if self.missing_error:
            return f"the agent ends without the exception {self.missing_error}"
        if self.unused_calls:
            return f"the agent did not repeat {format_quantity(self.unused_calls, 'recorded call')}"
        if self.effects_divergence is not None:
            return f"effect {self.effects_divergence} differs from the recorded ledger"
        return "" if self.is_equal else "the event logs differ outside the steps"


def replay_bundle(
    bundle: Bundle,
    agent: RecordableAgent,
    *,
    mode: ReplayMode | str = ReplayMode.SEALED,
    from_call: int | None = None,
    edit: ReplayEdit | None = None,
) -> ReplayResult:
    """Run an agent with the recorded calls of a bundle.

    In the modes ``sealed`` and ``scripted`` the binding has no reference to a live model or tool. A
    connection to the network raises ReplayMismatch.

    Args:
        bundle: the bundle.
        agent: the function that `record_run` recorded.
        mode: source of the model's answers and of the tools' results, see `ReplayMode`.
        from_call: number of the first model call that is live, for the mode ``from-call``.
        edit: answer in place of the recorded answer of call ``from_call``; the calls after it are live.

    Raises:
        ReplayMismatch: the agent sent a request that is not in the bundle, or opened a connection.
        ConfigError: the mode or its options are wrong, a live tool has effects, or the agent has no
            trajectory.
    """
    scope = build_scope(bundle, mode, from_call, edit)
    replayer = CallReplayer(bundle, scope)
    missing_error = bundle.expectations.get("error", "")
    try:
        with block_network() if scope.is_offline else nullcontext():
            run = call_agent(agent, replayer, replayer.sessions)
    except Exception as error:
        replayer.raise_mismatch()
        if type(error).__name__ != missing_error or not replayer.sessions:
            raise
        missing_error = ""
        run = replayer.sessions[-1].run
    # A guard converts the exception of a tool to a message for the agent, so the run may end normally.
    replayer.raise_mismatch()
    run = replace(run, id=bundle.trajectory.id)  # an integration may choose a random ID
    redactor = Redactor(patterns=bundle.redaction_patterns)
    run = redactor.redact(Record(trajectory=run)).record.trajectory
    redacted = _set_recorded_times(run, bundle.trajectory)
    return ReplayResult(
        trajectory=redacted,
        is_equal=build_event_log(redacted) == build_event_log(bundle.trajectory),
        divergence=find_divergence(bundle.trajectory, redacted),
        unused_calls=replayer.count_unused_calls(),
        effects_divergence=_compare_effects(bundle, replayer, redactor),
        missing_error=missing_error,
    )


def _compare_effects(bundle: Bundle, replayer: CallReplayer, redactor: Redactor) -> str | None:
    """Return the place of the first effect that differs; None if the bundle has no ledger."""
    if not bundle.effects:
        return None
    effects = encode_effects(list_session_effects(replayer.sessions))
    return find_field(encode_effects(bundle.effects), redactor.redact_data({"effects": effects})["effects"])


def _set_recorded_times(run: Trajectory, recorded: Trajectory) -> Trajectory:
    """Return a run with the recorded times of its steps, since a replay does not repeat the clock."""
    times = {branch.id: branch.steps for branch in recorded.branches}
    branches = tuple(
        replace(branch, steps=_set_step_times(branch.steps, times.get(branch.id, ())))
        for branch in run.branches
    )
    return replace(run, steps=_set_step_times(run.steps, recorded.steps), branches=branches)


def _set_step_times(steps: Sequence[Step], recorded: Sequence[Step]) -> tuple[Step, ...]:
    timed = (
        replace(step, started_at=one.started_at, ended_at=one.ended_at)
        for step, one in zip(steps, recorded, strict=False)
    )
    return (*timed, *steps[len(recorded) :])
