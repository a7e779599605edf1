"""Passive interception: assignment of completed requests to runs, without verdicts on their answers.

Passive interception has no branch, because it never rolls back. It converts each turn once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from agentguard.intercept.adapters.openai_chat import add_usage
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import Conversation, Item
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.history_edits import HistoryEdits
from agentguard.intercept.history_sync import count_turns_before_task, select_context_steps
from agentguard.intercept.interceptor import Interceptor
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectClaim, EffectLedger, ExecutionDecision
from agentguard.recover.effect_store import Effect
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import SessionConfig
from agentguard.trajectory.model import Source, Step, Trajectory


@dataclass(eq=False, slots=True, kw_only=True)
class PassiveConversation(Conversation):
    """Conversation of completed requests.

    Attributes:
        first_step: first step of the history, which may be the system prompt.
        pending_steps: first steps of the first run, until they are committed.
    """

    first_step: Step
    pending_steps: list[Step]


class PassiveRequest(GuardedRequest):
    """One request and its answer; created by `PassiveInterceptor.open_request`."""

    _conversation: PassiveConversation

    def prepare(self, edits: HistoryEdits | None = None) -> None:
        """Commit the new turns."""
        del edits  # the guard cannot edit a completed request
        conversation, adapter, history, agent = (
            self._conversation,
            self.adapter,
            self._history,
            self._services.agent,
        )
        if conversation.pending_steps:
            steps, conversation.pending_steps = conversation.pending_steps, []
        else:
            steps = _build_new_steps(
                adapter,
                history,
                agent,
                processed_item_count=conversation.processed_item_count,
                is_new_run=conversation.is_finished,
            )
            if steps and (answer := conversation.answer_step) is not None:
                steps[0] = add_usage(steps[0], answer.usage, answer.model)
        if conversation.is_finished:
            run_id = self._services.begin_next_run(conversation)
            context_steps = _select_context_steps(adapter, history, agent, [conversation.first_step, *steps])
            conversation.session = self._services.start_session(
                adapter, self.request_body, context_steps, run_id
            )
        for step in steps:
            conversation.session.commit(step)
        conversation.session.check_boundary()
        conversation.processed_item_count = len(history)
        conversation.clear_answer()


class PassiveInterceptor(Interceptor):
    """`Interceptor` for completed requests."""

    request_class = PassiveRequest

    def _start_conversation(
        self, adapter: ApiAdapter, body: Mapping[str, Any], history: Sequence[Item], *, run_name: str
    ) -> PassiveConversation:
        name, agent = self._next_run_id(run_name), self.agent
        start, end = adapter.split_turns(history, 0)[0]
        first_step = adapter.build_step(history[start:end], agent)
        steps = _build_new_steps(adapter, history, agent, processed_item_count=0, is_new_run=False)
        session = self.start_session(
            adapter, body, _select_context_steps(adapter, history, agent, [first_step, *steps]), name
        )
        root = body.get("previous_response_id")
        return PassiveConversation(
            session=session,
            first_run_id=name,
            run_name=run_name,
            root_response_id=root,
            first_step=first_step,
            pending_steps=steps,
        )

    def _resume_conversation(
        self, conversation: Conversation, adapter: ApiAdapter, items: Sequence[Item], last_turn: int
    ) -> None:
        if isinstance(conversation, PassiveConversation):
            start, end = adapter.split_turns(items, 0)[0]
            conversation.processed_item_count = last_turn
            conversation.first_step = adapter.build_step(items[start:end], self.agent)


def _build_new_steps(
    adapter: ApiAdapter, history: Sequence[Item], agent: str, *, processed_item_count: int, is_new_run: bool
) -> list[Step]:
    """Return the new steps, without those before the task of a new run."""
    turns = adapter.split_turns(history, processed_item_count)
    if is_new_run or not processed_item_count:
        prompt_flags = [adapter.is_prompt(history[start:end]) for start, end in turns]
        turns = turns[count_turns_before_task(prompt_flags, is_new_run=is_new_run) :]
    return [adapter.build_step(history[start:end], agent) for start, end in turns]


def _select_context_steps(
    adapter: ApiAdapter, history: Sequence[Item], agent: str, steps: list[Step]
) -> list[Step]:
    """Return ``steps`` if they contain a user prompt, otherwise those of `select_context_steps`."""
    has_user_step = any(step.source is Source.USER for step in steps[1:])
    return steps if has_user_step else select_context_steps(adapter, history, agent)


_NO_CAPABILITIES: Final = Capabilities()
_EMPTY_LEDGER: Final = EffectLedger()
"""Ledger of all passive sessions, which make no entries."""

_ALWAYS_RUN: Final = EffectClaim(
    decision=ExecutionDecision.RUN, effect=Effect(key="", occurrence=0, tool="", arguments={}, step=0)
)


class StepSink(Protocol):
    """Receiver of the steps of a run and of its end."""

    def add(self, step: Step) -> None:
        """Receive the next step."""
        ...

    def end(self) -> None:
        """Receive the end of the run."""
        ...


class PassiveSession(Session):
    """Session that records steps and never has a plan.

    It creates neither a budget account nor its own ledger, because most such runs have only two steps. No
    detector runs during the session; the receiver of the steps runs the detectors after the end.

    Args:
        config: configuration with the ``clock`` and the ``run_end_observers``; the rest is not used.
        meta: the run without steps.
        sink: receiver of the steps.
    """

    def __init__(self, config: SessionConfig, meta: Trajectory, sink: StepSink) -> None:
        self.config, self.capabilities, self.id = config, _NO_CAPABILITIES, meta.id
        self.ledger = _EMPTY_LEDGER
        self.recoveries, self.findings, self.failures = [], [], []
        self.stop_reason = self.assessment = self.unit_of_work = self.restorable_steps = None
        self.has_ended, self.overhead_s = False, 0.0
        self._meta, self._sink = meta, sink
        self._steps: list[Step] = []
        self._turn_started_at = None

    @property
    def run(self) -> Trajectory:
        """The run so far; without its steps after its end."""
        return replace(self._meta, steps=tuple(self._steps))

    def __len__(self) -> int:
        """Return the number of steps so far."""
        return len(self._steps)

    def check_boundary(self) -> RecoveryPlan | None:
        """Start the next turn; return None, because a passive session has no plans."""
        self.start_turn()
        return None

    def begin_tool(self, tool: str, arguments: Mapping[str, Any]) -> EffectClaim:
        """Return a claim that permits the call, because the tool has already run."""
        del tool, arguments
        return _ALWAYS_RUN

    def end_tool(
        self, claim: EffectClaim, result: str, *, is_refused: bool = False, has_failed: bool | None = None
    ) -> None:
        """Do nothing: the step contains the result."""

    def commit(self, turn: Step) -> Step:
        """Record a step and return it with its index and times."""
        step = self.stamp_times(turn).with_index(len(self._steps))
        self._steps.append(step)
        self._sink.add(step)
        return step

    def release_detectors(self) -> None:
        """Do nothing: no detector runs during the session."""

    def end(self, *, is_refusable: bool = True) -> None:
        """End the run and release its steps; a second call has no effect."""
        del is_refusable
        if self.has_ended:
            return
        self.has_ended = True
        self._sink.end()
        for observer in self.config.run_end_observers:
            self.run_safely(observer, self.run, ())
        self._steps = []
