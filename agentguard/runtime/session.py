"""Session of a guarded run: an integration reports events and receives recovery plans.

An integration maps its framework to these events and calls them in this order for each turn::

    plan = session.check_boundary()      before the model call: apply the plan's actions first
    plan = session.propose(turn)         after the response, before the tools: a plan here rejects the
                                         turn, repairs it, or starts a vote (`Session.count_votes`)
    claim = session.begin_tool(...)      before each tool; session.end_tool(claim, ...) after it
    session.commit(turn)                 the turn with its tool results
    plan = session.end()                 the agent wants to end the run: a plan here refuses the end

- When a call returns a plan, the session has already forked the recorded run and rewound the ledger.
  The integration then changes the agent's own messages and state accordingly.
- Steps have the indices of the trajectory. A turn that is repeated after a rollback has the index of the turn
  that it replaces.
- The integration reads ``session.stop_reason`` after each event and ends the run if it is not None.
- The session itself does not wait, call a model or access a disk.
- If a part of the guard fails, the session records the failure and the run continues. With
  ``on_guard_error="fail_closed"`` the run stops instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from agentguard import _sync_async
from agentguard.detect.base import DetectorFailure
from agentguard.detect.step_facts import canonicalize_json
from agentguard.recover.actions import Repair, Sample, SampleVariant
from agentguard.recover.agent_messages import format_person_answer
from agentguard.recover.call_repair import annotate_step, apply_repairs, diff_calls
from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.tool_effects import AttemptOutcome, Reconcile, classify_attempt
from agentguard.runtime import run_end
from agentguard.runtime.live_diagnosis import plan_recovery
from agentguard.runtime.pending_turn import PendingTurn
from agentguard.runtime.plan_application import apply_plan
from agentguard.runtime.read_retry import ReadRetry
from agentguard.runtime.run_state import RunState
from agentguard.runtime.turn_vote import VoteResult
from agentguard.trajectory.model import Source, Step, ToolSpec


class Session(RunState):
    """Session of one guarded run; thread-safe. Its arguments are those of `RunState`."""

    _read_retry: ReadRetry | None = None

    @cached_property
    def pending_turn(self) -> PendingTurn:
        """Uncommitted turn of the run."""
        return PendingTurn()

    @property
    def read_retry(self) -> ReadRetry:
        """Retries of failed reads of the current turn; several tools may ask for it at once."""
        with self._lock:
            if self._read_retry is None:
                self._read_retry = ReadRetry(self.pending_turn.queue_message)
            return self._read_retry

    def add_tools(self, tools: Iterable[ToolSpec]) -> None:
        """Declare tools that became available during the run, so that detectors accept their calls."""
        with self.acquire_lock():
            self.declare_tools(tools)

    def check_boundary(self) -> RecoveryPlan | None:
        """Return the plan to apply before the next model call, if there is one."""
        with self.acquire_lock():
            self.start_turn()
            self.queue_judge_findings()
            trigger = self.pending_trigger
            self.clear_trigger()
            if self.stop_reason is not None:
                return None
            plan: RecoveryPlan | None = None
            if trigger is not None:
                plan = self.run_safely(plan_recovery, self, trigger)
                if plan is not None:
                    apply_plan(self, self.pending_turn, plan, trigger)
            return self.pending_turn.attach_messages(self, plan)

    def propose(self, turn: Step) -> RecoveryPlan | None:
        """Evaluate a turn whose tools have not run.

        Returns:
            A plan, or None if the integration can run the tools. In that case a finding on the turn may still
            lead to a plan at the next boundary. The integration applies the plan's actions as follows;
            `resolve_turn` implements `Repair` and `Sample`:

            - `Reject`: discard the turn and request another from the model with the plan's messages.
            - `Escalate`: discard the turn and ask a person.
            - `Stop`: discard the turn and end the run.
            - `Repair`: repair the turn and propose it again.
            - `Sample`: request further candidates and pass them to `count_votes`.
        """
        with self.acquire_lock():
            if self._read_retry is not None:
                self._read_retry.reset()
            return self.pending_turn.evaluate(self, turn.with_index(len(self)))

    def must_hold(self, turn: Step) -> bool:
        """Return whether the calls of an accepted turn wait for the judges; see `check_with_judges`."""
        if self.live_run is None or not self.live_run.holds_effects or self.stop_reason is not None:
            return False
        return any(self.ledger.has_effect(call.name) for call in turn.tool_calls)

    def check_with_judges(self, turn: Step) -> RecoveryPlan | None:
        """Wait for the judges' answer about an accepted turn, for at most ``hold_s`` seconds.

        Returns:
            A plan that prevents the calls, as from `propose`, if both judges consider the turn a mistake.
            Otherwise None.
        """
        live_run = self.live_run
        if live_run is None:
            return None
        with self.acquire_lock():
            run, numbered = self.run, turn.with_index(len(self))
        finding = live_run.classify_proposal(run, numbered)
        if finding is None:
            return None
        with self.acquire_lock():
            return self.pending_turn.refuse(self, numbered, finding)

    def record_person_answer(self, answer: str) -> str:
        """Record a person's answer to the question of an `Escalate`; return the message to the agent.

        If the question is about refused calls, an answer such as "yes" permits their repetition by the agent.
        Any other answer forbids them.
        """
        with self.acquire_lock():
            is_approved = self.pending_turn.approvals.record_answer(answer)
            text = answer if is_approved is None else format_person_answer(answer, is_approved=is_approved)
            self.queue_messages([text])
            return text

    def count_votes(self, plan: RecoveryPlan, candidates: Sequence[Step | None]) -> VoteResult:
        """Count the votes of candidates for one turn.

        Args:
            plan: the plan with a `Sample` that `propose` returned.
            candidates: the proposed turn and the further candidates, in the order of the requests; None for a
                failed request.

        Raises:
            RecoveryError: the plan has no open vote.
        """
        with self.acquire_lock():
            return self.pending_turn.count_votes(self, plan, candidates)

    def record_failure(self, error: Exception) -> None:
        """Record that a request of the guard failed; the run continues."""
        with self.acquire_lock():
            failure = DetectorFailure(detector="guard", step=len(self), error=type(error).__name__)
            self.failures.append(failure)

    def begin_tool(self, tool: str, arguments: Mapping[str, Any]) -> EffectClaim:
        """Claim a tool call in the ledger before the tool runs; `ExecutionDecision` describes the result.

        The integration claims all calls of a turn in their order, before it runs any of them.
        """
        with self.acquire_lock():
            claim = self.ledger.claim_call(tool, arguments, step=len(self))
        reconcile = self.ledger.get_tool_effect(tool).reconcile
        if claim.decision is not ExecutionDecision.OUTCOME_UNKNOWN or reconcile is None:
            return claim
        return self._reconcile(claim, reconcile)

    def end_tool(
        self, claim: EffectClaim, result: str, *, is_refused: bool = False, has_failed: bool | None = None
    ) -> None:
        """Record the result of a tool call in the ledger; `classify_attempt` has the rules for errors.

        Args:
            claim: the claim that `begin_tool` returned.
            result: the tool's result or the text of its exception.
            is_refused: True if the tool failed and certainly had no effect.
            has_failed: whether the tool raised an exception; None if unknown.
        """
        tool = claim.effect.tool
        if claim.decision is not ExecutionDecision.RUN or not self.ledger.has_effect(tool):
            return
        with self.acquire_lock():
            outcome = AttemptOutcome.FAILED
            if not is_refused and not self.is_unknown_tool(tool):
                runs_once = self.ledger.is_declared(tool) and self.ledger.forbids_repetition(tool)
                outcome = classify_attempt(result.lower(), has_failed=has_failed, runs_once=runs_once)
            match outcome:
                case AttemptOutcome.FAILED:
                    self.ledger.mark_failed(claim.effect)
                case AttemptOutcome.DONE:
                    self.ledger.mark_done(claim.effect, result)
                case AttemptOutcome.UNKNOWN:
                    # Without this write the effect remains attempted, which also prevents a repetition.
                    self.run_safely(self.ledger.mark_ambiguous, claim.effect)

    def _reconcile(self, claim: EffectClaim, reconcile: Reconcile) -> EffectClaim:
        """Determine by the tool's reconcile function whether a call with unknown outcome took effect."""
        effect = claim.effect
        try:
            found = reconcile(**effect.arguments)
        except Exception as error:  # the function may raise anything; the outcome remains unknown
            self.record_failure(error)
            return claim
        with self.acquire_lock():
            if found is None:
                self.ledger.mark_failed(effect)
                return self.ledger.claim_call(effect.tool, effect.arguments, step=len(self))
            text = found if isinstance(found, str) else canonicalize_json(found)
            self.ledger.mark_reconciled(effect, text)
            return EffectClaim(decision=ExecutionDecision.REUSE, effect=replace(effect, result=text))

    def commit(self, turn: Step) -> Step:
        """Record a turn with its tool results, or a turn of a user or the environment.

        Returns:
            The recorded step with its index.
        """
        with self.acquire_lock():
            step, found = self.record_step(self._annotate(self.stamp_times(turn)))
            self.pending_turn.uncertainty = max((one.probability for one in found), default=0.0)
            return step

    def end(self, *, is_refusable: bool = True) -> RecoveryPlan | None:
        """End the run at the agent's request, or refuse the end.

        Args:
            is_refusable: False if the agent's output was already delivered. The session then runs the
                acceptance test and records its result, but ends the run in any case.

        Returns:
            A plan if the guard refuses the end: the integration executes its actions and continues the run.
            None if the run has ended (a second call does nothing).
        """
        with self.acquire_lock():
            if self.has_ended:
                return None
            plan = run_end.end_run(self, self.pending_turn, is_refusable=is_refusable)
            if plan is not None:
                self.start_turn()  # the integration may call the model again without another boundary
            return plan

    def _annotate(self, turn: Step) -> Step:
        """Return the step with its index and all annotations."""
        numbered = self.annotate_messages(turn).with_index(len(self))
        annotations = self.pending_turn.take_annotations(numbered)
        retry = self._read_retry if turn.source is Source.AGENT else None
        if retry is not None and (reads := retry.build_annotations(self, numbered)):
            annotations["repaired"] = [*annotations.get("repaired", []), *reads]
        return annotate_step(numbered, annotations) if annotations else numbered


def end_session(session: Session) -> _sync_async.SharedBody[RecoveryPlan | None]:
    """Call `Session.end` from a generator body, in a thread if it may block."""
    if not session.config.may_block:
        return session.end()
    plan: RecoveryPlan | None = yield _sync_async.RunInThread(session.end)
    return plan


async def aend_session(session: Session) -> RecoveryPlan | None:
    """Call `Session.end` from asynchronous code, in a thread if it may block."""
    return await asyncio.to_thread(session.end) if session.config.may_block else session.end()


MAX_REJECTIONS = 10
"""Maximum number of consecutive rejections of one turn by an integration.

The integration then accepts the response, unless it repeats a side effect. A recovery budget may be
unlimited.
"""

MAX_ROUNDS = 8
"""Upper limit of repairs and votes per turn, against an endless loop; no escalation policy needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTurn:
    """Result of `resolve_turn`.

    Attributes:
        turn: the turn with which the run continues, repaired if necessary.
        response: the model response of this turn: the first one, or that of another candidate.
        is_repaired: whether the turn differs from that response.
        plan: the plan that rejects the turn, as from `Session.propose`; None if the run continues with it.
    """

    turn: Step
    response: Any
    is_repaired: bool = False
    plan: RecoveryPlan | None = None


def resolve_turn(
    session: Session,
    response: Any,
    parse_turn: Callable[[Any], Step],
    build_request: Callable[[SampleVariant], Any],
) -> _sync_async.SharedBody[ResolvedTurn]:
    """Resolve a model response to the turn with which the run continues.

    The function proposes the turn to the session and repairs it. If the session needs a vote, it yields
    `agentguard._sync_async.Gather` to request further candidates. A generator body continues with
    ``resolved = yield from resolve_turn(session, response, parse_turn, build_request)``.

    An exception while a candidate is requested or parsed removes its vote and is recorded in
    ``session.failures``.

    Args:
        session: session of the run.
        response: response of the model.
        parse_turn: function that converts a response to a step whose tools have not run.
        build_request: function that builds the request of a candidate, which the body yields.
    """
    resolved = yield from _resolve_proposal(session, response, parse_turn, build_request)
    if resolved.plan is not None or not session.must_hold(resolved.turn):
        return resolved
    plan = yield _sync_async.RunInThread(partial(session.check_with_judges, resolved.turn))
    return replace(resolved, plan=plan)


def _resolve_proposal(
    session: Session,
    response: Any,
    parse_turn: Callable[[Any], Step],
    build_request: Callable[[SampleVariant], Any],
) -> _sync_async.SharedBody[ResolvedTurn]:
    turn, repaired = parse_turn(response), False
    plan = session.propose(turn)
    for left in reversed(range(MAX_ROUNDS)):
        if plan is None:
            break
        repairs = [action for action in plan.actions if isinstance(action, Repair)]
        if repairs:
            turn, repaired = apply_repairs(turn, repairs), True
            plan = session.propose(turn) if left else None
        elif any(isinstance(action, Sample) for action in plan.actions):
            answers: list[Any] = [response]
            candidates: list[Step | None] = [turn]
            state = session.count_votes(plan, candidates)
            while state.variants:
                responses = yield from _request_candidates(build_request, state.variants)
                answers += responses
                candidates += [_parse_candidate(session, one, parse_turn) for one in responses]
                state = session.count_votes(plan, candidates)
            plan = state.plan
            if state.turn is not None:
                original = candidates[state.candidate_index]
                is_changed = original is not None and bool(diff_calls(original, state.turn))
                repaired = is_changed or (repaired and state.candidate_index == 0)
                turn, response = state.turn, answers[state.candidate_index]
        else:
            return ResolvedTurn(turn=turn, response=response, is_repaired=repaired, plan=plan)
    return ResolvedTurn(turn=turn, response=response, is_repaired=repaired)


def _request_candidates(
    build_request: Callable[[SampleVariant], Any], variants: Sequence[SampleVariant]
) -> _sync_async.SharedBody[list[Any]]:
    """Return the responses in order; a failed request has its exception in place of the response."""
    requests: list[Any] = []
    for variant in variants:
        try:
            requests.append(build_request(variant))
        except Exception as error:  # for example, the model does not exist
            requests.append(error)
    valid = tuple(one for one in requests if not isinstance(one, Exception))
    responses = iter((yield _sync_async.Gather(valid)))
    return [one if isinstance(one, Exception) else next(responses) for one in requests]


def _parse_candidate(session: Session, response: Any, parse_turn: Callable[[Any], Step]) -> Any:
    """Return a candidate's turn; None if the request failed or the response cannot be parsed."""
    try:
        if isinstance(response, Exception):
            raise response
        return parse_turn(response)
    except Exception as error:  # a model may raise anything; the other candidates still vote
        session.record_failure(error)
        return None
