"""Resumption of a run whose process died.

The recorder restores the steps and the abandoned branches. The ledger restores the effects. The stored
recoveries determine the rest of the session's state:

- the used budget,
- the escalation levels that have been tried,
- the disabled tools,
- the messages that the agent has not received yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from agentguard.detect.base import most_severe
from agentguard.errors import FormatError
from agentguard.recover.actions import DisableTools, Restart, SendMessage, Stop
from agentguard.recover.agent_messages import format_interruption
from agentguard.recover.budget import BudgetUsage
from agentguard.recover.escalation_planner import compute_plan_cost
from agentguard.recover.outcome_verification import get_resume_step
from agentguard.recover.plan import Recovery, RecoveryTier
from agentguard.recover.recovery_rows import decode_recovery
from agentguard.runtime.session import Session
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store


def start_stored_run(store: Store, meta: Trajectory) -> RunRecorder:
    """Return a recorder that writes a new run to the store in the background and replaces any stored run."""
    from agentguard.store.db.rows import ClearRunRow
    from agentguard.store.event_sink import StoreEventSink

    store.write(ClearRunRow(run_id=meta.id))
    return RunRecorder(meta, log=StoreEventSink(store))


def resume_stored_run(store: Store, meta: Trajectory) -> tuple[RunRecorder, bool]:
    """Return a recorder with the steps of a stored run, or a new recorder, and whether that run has ended.

    Raises:
        StoreUnavailable: the store cannot be read.
        FormatError: the stored run is not valid.
    """
    from agentguard.store.event_sink import StoreEventSink

    record, row = store.get_record(meta.id), store.get_run(meta.id)
    if record is None or row is None:
        return start_stored_run(store, meta), False
    ended = bool(row.data.get("ended"))
    # A sink would start the run again in the store, and an ended run gets no further steps.
    return RunRecorder.resume_record(record, log=None if ended else StoreEventSink(store)), ended


def list_recoveries(store: Store, run_id: str) -> list[Recovery]:
    """Return the recoveries of a stored run, the earliest first, without rows that cannot be decoded.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    found = []
    for row in store.list_recoveries(run_id):
        try:
            found.append(decode_recovery(row.data))
        except FormatError:
            continue
    return sorted(found, key=lambda one: one.id)


INTERRUPTION_REASON = "the process ended; the run continues from the last saved state"
"""Reason of the fork when a resumed run abandons the steps after the last saved state."""


def restore_session(session: Session, recoveries: Sequence[Recovery]) -> None:
    """Restore the recoveries of a run, and the state that follows from them, into a new session.

    Args:
        session: new session that already has the stored steps.
        recoveries: the run's recoveries, the earliest first.
    """
    session.recoveries[:] = recoveries
    session.account.restore(compute_usage(recoveries), count_rollbacks(recoveries))
    stops = (action for one in recoveries for action in one.plan.actions if isinstance(action, Stop))
    session.stop_reason = next((stop.reason for stop in stops), None)
    session.queue_messages(list_pending_messages(recoveries, len(session)))
    session.update_outcomes()
    _restore_pending_trigger(session)


def rewind_to_saved_state(session: Session, step: int) -> None:
    """Roll the run back to ``step``, the last saved state, and queue a message that informs the agent."""
    with session.acquire_lock():
        lost, effects = len(session) - step, session.ledger.list_active_since(step)
        _rewind(session, step)
        session.queue_messages([format_interruption(lost, effects)])


def discard_unknown_steps(session: Session, known: Sequence[Step]) -> None:
    """Roll back the steps that are not in the framework's own state and that it executes again.

    Args:
        session: session of a resumed run.
        known: the complete turns of the framework's state, as steps. Unless they are a prefix of the current
            branch, the function does nothing.
    """
    with session.acquire_lock():
        live = session.run.steps
        if len(known) < len(live) and all(map(_is_same_step, known, live)):
            _rewind(session, len(known))


def _rewind(session: Session, step: int) -> None:
    session.recorder.fork(step, reason=INTERRUPTION_REASON)
    session.ledger.rewind(step)
    session.replay_detectors()
    session.clear_trigger()
    _restore_pending_trigger(session)


def _is_same_step(one: Step, other: Step) -> bool:
    """Return whether two steps have the same source, content and calls.

    Ignore the tool results: a repair may have changed them.
    """
    mine, others = ([(call.name, call.arguments) for call in step.tool_calls] for step in (one, other))
    return (one.source, one.content, mine) == (other.source, other.content, others)


def compute_usage(recoveries: Sequence[Recovery]) -> BudgetUsage:
    """Return the budget that recoveries used: the highest recorded usage, at least the sum of their costs."""
    costs = [compute_plan_cost(one.plan) for one in recoveries]
    computed = BudgetUsage(
        rollbacks=sum("rollback_to" in one for one in costs),
        hints=sum(one.get("hint", False) for one in costs),
        repairs=sum(one.get("repair", False) for one in costs),
        tokens=sum(int(one.cost.get("tokens", 0)) for one in recoveries),
    )
    usages = [computed, *(one.spent for one in recoveries if one.spent is not None)]
    return BudgetUsage(
        **{one.name: max(getattr(spent, one.name) for spent in usages) for one in fields(BudgetUsage)}
    )


def count_rollbacks(recoveries: Sequence[Recovery]) -> dict[int, int]:
    """Return the number of rollbacks to each step by its index."""
    return dict(
        Counter(
            cost["rollback_to"]
            for one in recoveries
            if "rollback_to" in (cost := compute_plan_cost(one.plan))
        )
    )


def list_pending_messages(recoveries: Sequence[Recovery], steps: int) -> list[str]:
    """Return the messages of the last recoveries that no committed step follows."""
    texts: list[str] = []
    for one in reversed(recoveries):
        if get_resume_step(one) != steps:
            break
        # The repair of an uncommitted turn is lost with the turn.
        if one.plan.tier is not RecoveryTier.REPAIR or one.plan.step < one.at_step:
            texts[:0] = [action.text for action in one.plan.actions if isinstance(action, SendMessage)]
        if one.plan.undone and one.plan.tier is not RecoveryTier.REJECT:
            break  # earlier messages are on the abandoned branch
    return texts


def list_disabled_tools(session: Session) -> set[str]:
    """Return the tools that recoveries have disabled in the run."""
    done = (action for one in session.recoveries for action in one.plan.actions)
    return {tool for action in done if isinstance(action, DisableTools) for tool in action.tools}


def get_restart_note(session: Session) -> str:
    """Return the note that the latest restart added to the task; empty without a restart."""
    done = (action for one in reversed(session.recoveries) for action in one.plan.actions)
    return next((action.note for action in done if isinstance(action, Restart)), "")


def _restore_pending_trigger(session: Session) -> None:
    """Queue the most severe finding on the last step, unless a recovery followed it."""
    steps = len(session)
    if session.recoveries and get_resume_step(session.recoveries[-1]) == steps:
        return
    last = [one for one in session.findings if (one.noticed_at or one.step) == steps - 1]
    session.queue_trigger(most_severe(last, session.config.finding_threshold))
