"""Going on with a run whose process died: what it had spent, what was tried, what is still to be said.

The steps and the lines that were left come back with the recorder, effects with the ledger. What else a
session knew follows from the recoveries that were kept: the account, the ladder's rungs that were tried, the
tools that were taken away, and what the agent had not been told yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from agentguard.errors import FormatError
from agentguard.recover.actions import DisableTools, Restart, SendMessage, Stop
from agentguard.recover.agent_messages import format_interruption
from agentguard.recover.budget import BudgetUsage
from agentguard.recover.outcome_verification import get_resume_step
from agentguard.recover.persistence import decode_recovery
from agentguard.recover.plan import Recovery, RecoveryTier
from agentguard.recover.planner import compute_plan_cost
from agentguard.runtime.live_diagnosis import most_severe
from agentguard.runtime.session import Session
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Step, Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store


def start_stored_run(store: Store, meta: Trajectory) -> RunRecorder:
    """A recorder of a new run that is written behind; what is stored under its id is replaced."""
    from agentguard.store.db.rows import ClearRunRow
    from agentguard.store.event_sink import StoreEventSink

    store.write(ClearRunRow(run_id=meta.id))
    return RunRecorder(meta, log=StoreEventSink(store))


def resume_stored_run(store: Store, meta: Trajectory) -> tuple[RunRecorder, bool]:
    """A recorder that has the steps of a stored run, or a new one; and whether that run has ended.

    Raises:
        StoreUnavailable: the store cannot be read.
        FormatError: the stored run is none.
    """
    from agentguard.store.event_sink import StoreEventSink

    known, row = store.get_record(meta.id), store.get_run(meta.id)
    if known is None or row is None:
        return start_stored_run(store, meta), False
    ended = bool(row.data.get("ended"))
    # Nothing is added to a run that has ended; a log would begin it anew in the store.
    return RunRecorder.resume_record(known, log=None if ended else StoreEventSink(store)), ended


def list_recoveries(store: Store, run_id: str) -> list[Recovery]:
    """The recoveries of a stored run, the earliest first; rows that a guard did not write are left out.

    Raises StoreUnavailable.
    """
    found = []
    for row in store.list_recoveries(run_id):
        try:
            found.append(decode_recovery(row.data))
        except FormatError:
            continue
    return sorted(found, key=lambda one: one.id)


INTERRUPTION_REASON = "the process ended; the run goes on from the last state that was saved"
"""Why a line was left that is further than the last saved state."""


def restore_session(session: Session, recoveries: Sequence[Recovery]) -> None:
    """Give a session the recoveries that its run has had; its steps it has already.

    Args:
        session: made of the steps that were kept; nothing has happened in it yet.
        past: the run's recoveries, the earliest first.
    """
    session.recoveries[:] = recoveries
    session.account.restore(compute_usage(recoveries), count_rollbacks(recoveries))
    stops = (action for one in recoveries for action in one.plan.actions if isinstance(action, Stop))
    session.stop_reason = next((stop.reason for stop in stops), None)
    session._pending_messages = list_pending_messages(recoveries, len(session))
    session._update_outcomes()
    _restore_pending_trigger(session)


def rewind_to_saved_state(session: Session, step: int) -> None:
    """Leave the live line before ``step``, where the last state was saved; the agent is told."""
    with session._acquire_timed():
        lost, effects = len(session) - step, session.ledger.list_active_since(step)
        _rewind(session, step)
        session._pending_messages.append(format_interruption(lost, effects))


def discard_unknown_steps(session: Session, known: Sequence[Step]) -> None:
    """Leave the steps that a framework's own state ends before: it will take them anew.

    Args:
        session: of a run that is gone on with.
        known: the whole turns that the framework has, as steps. Where they are no beginning of the live line,
            others have rewritten them, and nothing is left.
    """
    with session._acquire_timed():
        live = session.run.steps
        if len(known) < len(live) and all(map(_is_same_step, known, live)):
            _rewind(session, len(known))


def _rewind(session: Session, step: int) -> None:
    session.recorder.fork(step, reason=INTERRUPTION_REASON)
    session.ledger.rewind(step)
    session._rerun_detectors()
    session._pending_trigger = None
    _restore_pending_trigger(session)


def _is_same_step(one: Step, other: Step) -> bool:
    """Whether two steps say and call the same; what a tool returned may have been repaired since."""
    mine, others = ([(call.name, call.arguments) for call in step.tool_calls] for step in (one, other))
    return (one.source, one.content, mine) == (other.source, other.content, others)


def compute_usage(recoveries: Sequence[Recovery]) -> BudgetUsage:
    """What recoveries had cost: the most that one of them was kept with, and no less than their prices."""
    prices = [compute_plan_cost(one.plan) for one in recoveries]
    alone = BudgetUsage(
        rollbacks=sum("rollback_to" in one for one in prices),
        nudges=sum(one.get("nudge", False) for one in prices),
        repairs=sum(one.get("repair", False) for one in prices),
        tokens=sum(int(one.cost.get("tokens", 0)) for one in recoveries),
    )
    known = [alone, *(one.spent for one in recoveries if one.spent is not None)]
    return BudgetUsage(
        **{one.name: max(getattr(spent, one.name) for spent in known) for one in fields(BudgetUsage)}
    )


def count_rollbacks(recoveries: Sequence[Recovery]) -> dict[int, int]:
    """Step to how often the run was taken back to it."""
    return dict(
        Counter(
            cost["rollback_to"]
            for one in recoveries
            if "rollback_to" in (cost := compute_plan_cost(one.plan))
        )
    )


def list_pending_messages(recoveries: Sequence[Recovery], steps: int) -> list[str]:
    """What the last recoveries had to say to the agent at a boundary that no step was committed after."""
    texts: list[str] = []
    for one in reversed(recoveries):
        if get_resume_step(one) != steps:
            break
        if (
            one.plan.tier is not RecoveryTier.REPAIR or one.plan.step < one.at_step
        ):  # else of a turn that was lost
            texts[:0] = [action.text for action in one.plan.actions if isinstance(action, SendMessage)]
        if one.plan.undone and one.plan.tier is not RecoveryTier.REJECT:
            break  # what was said before it went with the line that was left
    return texts


def list_disabled_tools(session: Session) -> set[str]:
    """Tools that the run has lost."""
    done = (action for one in session.recoveries for action in one.plan.actions)
    return {tool for action in done if isinstance(action, DisableTools) for tool in action.tools}


def get_restart_note(session: Session) -> str:
    """What the latest restart of the run added to its task; empty if there was none."""
    done = (action for one in reversed(session.recoveries) for action in one.plan.actions)
    return next((action.note for action in done if isinstance(action, Restart)), "")


def _restore_pending_trigger(session: Session) -> None:
    """What was found on the last step, and not acted upon before the process died."""
    steps = len(session)
    if session.recoveries and get_resume_step(session.recoveries[-1]) == steps:
        return
    last = [one for one in session.findings if (one.noticed_at or one.step) == steps - 1]
    session._queue_trigger(most_severe(last, session.config.finding_threshold))
