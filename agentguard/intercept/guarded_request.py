"""Guarded request, without input or output: the body to send, and the verdict on the answer.

A transport uses it as follows:

1. It calls `Interceptor.open_request`.
2. It sends `GuardedRequest.encoded_body`, or returns `GuardedRequest.final_text` if that is set.
3. It passes each complete answer to `GuardedRequest.judge_answer`. The decision is to deliver the answer,
   to repeat the request, or to return the guard's final answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentguard import _sync_async
from agentguard.errors import RecoveryError
from agentguard.intercept.adapters.openai_chat import add_usage
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import (
    BranchStep,
    Conversation,
    Item,
    build_prefix_keys,
    build_response_key,
    extend_key,
    release_claims,
)
from agentguard.intercept.history_edits import HistoryEdits, build_shared_state
from agentguard.intercept.history_sync import (
    HistorySync,
    InterceptorServices,
    build_answer_key,
    select_context_steps,
)
from agentguard.recover.actions import SampleVariant
from agentguard.recover.effect_ledger import ExecutionDecision
from agentguard.recover.plan import Recovery, RecoveryPlan
from agentguard.runtime.session import MAX_REJECTIONS, ResolvedTurn, end_session, resolve_turn
from agentguard.runtime.tool_execution import format_repeated_calls
from agentguard.trajectory.model import Step

Decision = Literal["deliver", "again", "final"]


AnswerSource = Literal["same", "repaired", "other"]
"""Answer that the client gets: the model's answer, its repaired form, or another candidate."""


VisibleAnswer = Callable[[list[Item], AnswerSource], tuple[list[Item] | None, str]]
"""Function from the delivered answer to the answer that the client receives.

The function returns a pair:

- the visible items, or None if they equal the answer. They differ if the client has already received
  streamed text of a rejected answer.
- the ID of the response whose start the client received; empty if it is the ID of the answer.
"""


@dataclass(frozen=True, slots=True)
class CandidateRequest:
    """Functions that send one more request to the model for another candidate.

    Attributes:
        build_request: converts a request body to the effect that sends it.
        parse_response: converts the result of that effect to a payload; raises if it is not an answer.
    """

    build_request: Callable[[bytes], Any]
    parse_response: Callable[[Any], dict[str, Any]]


class GuardedRequest(HistorySync):
    """One request and its answers; created by `Interceptor.open_request`.

    Attributes:
        is_unjoined: whether the request continues a run that this process does not know.
    """

    def __init__(
        self,
        services: InterceptorServices,
        adapter: ApiAdapter,
        conversation: Conversation,
        body: dict[str, Any],
        *,
        history: list[Item],
        retry_key: bytes,
        key_seed: str,
    ) -> None:
        super().__init__(services, adapter, conversation, history)
        self.request_body, self._retry_key, self._key_seed = body, retry_key, key_seed
        self._retry_count, self._is_settled = 0, False
        self.final_text: str | None = None
        self.is_dropped = False
        self.is_unjoined = False
        self.replacement_payload: dict[str, Any] | None = None
        self.answer_source: AnswerSource = "same"
        self._has_hint = False
        self._recovery_offset = len(conversation.session.recoveries)

    @property
    def recoveries(self) -> list[Recovery]:
        """Return the recoveries that this request has caused so far."""
        return self.session.recoveries[self._recovery_offset :]

    @property
    def encoded_body(self) -> bytes | None:
        """Return the body to send; None if the client's own body is sent unchanged."""
        body = self.build_body()
        return None if body is self.request_body else _encode_body(body)

    def build_candidate_body(self, variant: SampleVariant) -> bytes:
        """Build the body that requests another candidate of the turn, without a stream."""
        branch, pending_items = self._conversation.branch, list(self._conversation.branch.pending_guard_items)
        if variant.instruction:
            self._has_hint = True
            branch.add_guard_item(self.adapter.build_guard_item(variant.instruction))
        body = {k: v for k, v in self.build_body().items() if k not in ("stream", "stream_options")}
        branch.pending_guard_items = pending_items
        if variant.model:
            body["model"] = variant.model
        if variant.temperature is not None:
            body["temperature"] = variant.temperature
        return _encode_body(body)

    def build_body(self) -> dict[str, Any]:
        """Build the body to send; the client's own body if the guard changes nothing."""
        branch, body = self._conversation.branch, self.request_body
        if not self.adapter.is_unchanged(branch, body, self._history):
            body = self.adapter.build_body(
                body, branch, self._history, root_response_id=self._conversation.root_response_id
            )
        return self.adapter.remove_tools(body, self._conversation.disabled_tools)

    def prepare(self, edits: HistoryEdits | None = None) -> None:
        """Commit the new turns, and apply a due recovery before the model call.

        Args:
            edits: edits from another process, if the conversation is new in this process.
        """
        conversation, is_renewed = self._conversation, self._conversation.is_finished
        self._edits = edits
        if edits is not None and edits.ledger_location is not None:
            self.session.ledger.restore(edits.ledger_location, edits.completed_effects)
        if is_renewed:
            self._start_next_run()
        turns = self.adapter.split_turns(self._history, conversation.processed_item_count)
        if is_renewed or not conversation.processed_item_count:
            conversation.step_offset = self._find_task_offset(turns, is_new_run=is_renewed)
            self.session.has_earlier_turns = is_renewed or conversation.step_offset > 0
        for start, end in turns:
            self._commit_turn(start, end)
        conversation.processed_item_count = len(self._history)
        conversation.clear_answer()
        if edits is not None:
            self._apply_edits(edits)
        plan = self.session.check_boundary()
        if plan is not None:
            self._apply_plan(plan)
        self._check_stopped()

    def judge_answer(
        self,
        payload: Mapping[str, Any],
        candidate_request: CandidateRequest,
        visible_answer: VisibleAnswer | None = None,
    ) -> _sync_async.SharedBody[Decision]:
        """Judge a complete answer of the model; yield the effects that request further candidates.

        `replacement_payload` is the answer to deliver, if it differs from ``payload``.

        Args:
            payload: the answer.
            candidate_request: builds the request for another candidate.
            visible_answer: returns the items that the client receives; by default those of the answer.
        """
        self.replacement_payload, self.answer_source = None, "same"
        self._conversation.superseded_response_ids = ()
        answer = self.adapter.extract_answer_items(payload)
        if answer is None:
            return self._record_delivery([], payload)
        if self._retry_count >= MAX_REJECTIONS:
            step = self._build_step(payload)
        else:
            choice = yield from self._resolve_turn(payload, candidate_request)
            if choice.plan is not None:
                return self._apply_and_retry(choice.plan)
            payload, step = choice.response, choice.turn
            answer = self.adapter.extract_answer_items(payload) or []
        if self._check_stopped():
            return "final"
        id = payload.get("id")
        visible_items, alias = visible_answer(answer, self.answer_source) if visible_answer else (None, "")
        self._conversation.superseded_response_ids = (alias,) if alias else ()
        if step.tool_calls:
            decision = self._claim_calls(step)
        else:
            decision = yield from self._judge_end(answer, step, response_id=id)
        if decision != "deliver":
            return decision
        if self._differs_from_stored():
            self._conversation.superseded_response_ids = (
                *self._conversation.superseded_response_ids,
                *filter(None, [id]),
            )
            payload = {**payload, "id": None}
        self._conversation.answer_step = (
            step if step.tool_calls and self.answer_source == "same" and visible_items is None else None
        )
        return self._record_delivery(answer, payload, visible_items=visible_items)

    def record_answer(self, payload: Mapping[str, Any]) -> None:
        """Record an answer that the client has received, without a verdict.

        The next request commits the calls of the answer, because only that request contains their results.
        """
        answer = self.adapter.extract_answer_items(payload) or []
        self._record_delivery(answer, payload)
        if not answer:
            return
        step = self._build_step(payload)
        if step.tool_calls:
            self._conversation.answer_step = step  # the next request contains its calls, but not its usage
            return
        self.session.commit(step)
        self._conversation.is_finished = True
        self.session.end(is_refusable=False)

    def _resolve_turn(
        self, payload: Mapping[str, Any], candidate_request: CandidateRequest
    ) -> _sync_async.SharedBody[ResolvedTurn]:
        """Resolve the turn; the returned response is the payload to deliver."""
        choice = yield from resolve_turn(
            self.session,
            payload,
            lambda given: self._build_step(
                given if given is payload else candidate_request.parse_response(given)
            ),
            lambda variant: candidate_request.build_request(self.build_candidate_body(variant)),
        )
        if choice.plan is not None:
            return choice
        chosen_payload: Any = choice.response
        if chosen_payload is not payload:
            chosen_payload, self.answer_source = candidate_request.parse_response(chosen_payload), "other"
        if choice.is_repaired:
            chosen_payload = self.adapter.apply_repaired_turn(chosen_payload, choice.turn)
            self._has_hint = self._has_hint or self.answer_source == "other"
            self.answer_source = "other" if self.answer_source == "other" else "repaired"
        self.replacement_payload = None if chosen_payload is payload else chosen_payload
        return replace(choice, response=chosen_payload)

    def _build_step(self, payload: Mapping[str, Any]) -> Step:
        """Convert an answer to a step without results. Raises RecoveryError if the answer is incomplete."""
        answer = self.adapter.extract_answer_items(payload)
        if answer is None:
            raise RecoveryError("a candidate is not a complete answer")
        step = self.adapter.build_step(answer, self._services.agent)
        return add_usage(step, self.adapter.extract_usage(payload), payload.get("model"))

    def _differs_from_stored(self) -> bool:
        """Return whether the answer, or its request on the server, differs from the client's.

        If so, the model gets the answer as items, not by its response ID.
        """
        return self.answer_source == "repaired" or (self.answer_source == "other" and self._has_hint)

    def discard(self) -> None:
        """Discard the conversation after a failure of the guard."""
        self._is_settled = self.is_dropped = True

    def settle(self, guard_items: Sequence[Item] = (), *, response_id: str = "") -> None:
        """Put the conversation into the cache; call this method once for every request, also after a failure.

        Args:
            guard_items: items of the guard's final answer, if there is one.
            response_id: ID of that answer.
        """
        if self._is_settled:
            return
        self._is_settled, conversation = True, self._conversation
        if guard_items:
            conversation.answer, conversation.is_finished = list(guard_items), True
            conversation.stored_response_id = conversation.replacement = None
            conversation.superseded_response_ids = (response_id,) if response_id else ()
        conversation.history = self._history if self.adapter.stores_history else []
        if not conversation.answer:  # without an answer, the client may repeat the request
            self._services.conversations.put(conversation, [self._retry_key])
            return
        if self.request_body.get("previous_response_id") is None:  # the client resends the whole history
            key = extend_key(self._retry_key, conversation.answer, self.adapter.build_item_key)
        else:
            key = build_prefix_keys(
                [*self._history, *conversation.answer],
                self.adapter.build_item_key,
                seed=f"{self._key_seed}\0",
            )[-1]
        continuation_keys = [
            key,
            *(
                build_response_key(stored_id)
                for stored_id in (*conversation.superseded_response_ids, conversation.stored_response_id)
                if stored_id
            ),
        ]
        # An answer with calls: results follow, even if the client drops older turns.
        if not conversation.is_finished:
            continuation_keys.append(build_answer_key(self.adapter, conversation.answer, self._key_seed))
        self._services.conversations.put(conversation, continuation_keys, self._retry_key)
        if self._services.save_edits is not None:
            data = build_shared_state(conversation, self.adapter, self._history, self.request_body)
            if data is not None:
                conversation.version += 1
                self._services.save_edits(conversation, data)

    def _start_next_run(self) -> None:
        """Start another run in a conversation whose last run has ended."""
        conversation = self._conversation
        run_id = self._services.begin_next_run(conversation)
        conversation.claims = {}
        conversation.disabled_tools.clear()
        self._recovery_offset = 0
        steps = select_context_steps(self.adapter, self._history, self._services.agent)
        conversation.session = self._services.start_session(self.adapter, self.request_body, steps, run_id)

    def _claim_calls(self, step: Step) -> Decision:
        """Claim the calls in the effect ledger before the client executes them; reject executed calls."""
        claims = {c.id: self.session.begin_tool(c.name, c.arguments or {}) for c in step.tool_calls}
        for id, claim in claims.items():
            if claim.decision is ExecutionDecision.REUSE and self.session.ledger.count_refusal(claim.effect):
                claims[id] = replace(claim, decision=ExecutionDecision.RUN)
        rejected_claims = [claim for claim in claims.values() if claim.decision is not ExecutionDecision.RUN]
        if not rejected_claims:
            self._conversation.claims = claims
            return "deliver"
        self._conversation.claims = claims
        release_claims(self._conversation)
        self._retry_count += 1
        if self._retry_count > MAX_REJECTIONS:
            self.session.stop_reason = "the model repeats a call that was already executed"
            self._check_stopped()
            return "final"
        self._conversation.branch.add_guard_item(
            self.adapter.build_guard_item(format_repeated_calls(rejected_claims))
        )
        return "again"

    def _judge_end(
        self, answer: list[Item], step: Step, *, response_id: str | None
    ) -> _sync_async.SharedBody[Decision]:
        self.session.commit(step)
        if self._check_stopped():
            return "final"
        self._conversation.is_finished = True
        plan = (yield from end_session(self.session)) if self._retry_count < MAX_REJECTIONS else None
        if plan is None:
            return "final" if self._check_stopped() else "deliver"
        self._conversation.is_finished = False
        hidden_step = BranchStep(
            items=list(answer), stored_item_count=len(answer)
        )  # the client never sees this answer
        hidden_step.stored_response_id = response_id if self.adapter.stores_history else None
        self._conversation.branch.add_step(hidden_step)
        return self._apply_and_retry(plan)

    def _apply_and_retry(self, plan: RecoveryPlan) -> Decision:
        self._retry_count += 1
        self._apply_plan(plan)
        return "final" if self._check_stopped() else "again"

    def _record_delivery(
        self, answer: list[Item], payload: Mapping[str, Any], *, visible_items: list[Item] | None = None
    ) -> Decision:
        self._conversation.answer = answer if visible_items is None else visible_items
        self._conversation.replacement = None if visible_items is None else answer
        self._conversation.stored_response_id = (
            payload.get("id") if self.adapter.stores_history and answer else None
        )
        return "deliver"

    def _check_stopped(self) -> bool:
        """Return whether the run was stopped; if so, set the guard's final answer and finish the run."""
        if self.session.stop_reason is None:
            return False
        self.final_text = f"[guard] The run was stopped: {self.session.stop_reason}"
        self.session.end()
        return True


def _encode_body(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
