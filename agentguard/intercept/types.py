"""Types that a guarded request shares with the interceptor, the transports and the stream buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import Conversation, ConversationCache, Item
from agentguard.recover.agent_messages import format_effects
from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE
from agentguard.trajectory.model import Step

Decision = Literal["deliver", "again", "final"]


AnswerSource = Literal["same", "repaired", "other"]
"""Answer that the client gets: the model's answer, its repaired form, or another candidate."""

VisibleAnswer = Callable[[list[Item], AnswerSource], tuple[list[Item] | None, str]]
"""Function from the delivered answer to what the client sees.

The function returns a pair:

- the visible items, or None if they equal the answer. They differ if the client has already seen streamed
  text of a rejected answer.
- the ID of the response that the client saw begin; empty if it is the ID of the answer.
"""


@dataclass(frozen=True, slots=True)
class CandidateRequest:
    """Functions that send one more request to the model for another candidate.

    Attributes:
        build_request: turns a request body into the effect that sends it.
        parse_response: converts the result of that effect to a payload; raises if it is not an answer.
    """

    build_request: Callable[[bytes], Any]
    parse_response: Callable[[Any], dict[str, Any]]


def show_answer_unchanged(answer: list[Item], source: AnswerSource) -> tuple[list[Item] | None, str]:
    """Return a `VisibleAnswer` result: the client sees the answer itself and nothing before it."""
    del answer, source
    return None, ""


class InterceptorServices(Protocol):
    """Services of the interceptor that its requests use."""

    agent: str
    conversations: ConversationCache
    save_edits: Callable[[Conversation, Mapping[str, Any]], None] | None

    def start_session(
        self, adapter: ApiAdapter, body: Mapping[str, Any], steps: Sequence[Step], run_id: str
    ) -> Session:
        """Start the session of a run."""
        ...

    def begin_next_run(self, conversation: Conversation) -> str:
        """Count another run of a conversation and return the ID of the run."""
        ...


def release_claims(conversation: Conversation) -> None:
    """Release the claims of calls that the client did not execute, so that it may execute them later."""
    session = conversation.session
    for claim in conversation.claims.values():
        session.end_tool(claim, "", is_refused=True)
    session.ledger.rewind(len(session))
    conversation.claims = {}


def format_repeated_calls(claims: Sequence[EffectClaim]) -> str:
    """Build the message to a model that repeats calls which were, or may have been, executed."""
    completed_effects = [claim.effect for claim in claims if claim.decision is ExecutionDecision.REUSE]
    open_effects = [claim.effect for claim in claims if claim.decision is ExecutionDecision.OUTCOME_UNKNOWN]
    parts = ["[guard] Your last answer was dropped."]
    if completed_effects:
        parts.append(
            f"These calls have already taken effect; do not repeat them: {format_effects(completed_effects)}."
        )
    if open_effects:
        parts.append(
            f"{UNKNOWN_OUTCOME_MESSAGE.removeprefix('[guard] ')} The call: {format_effects(open_effects)}."
        )
    return " ".join([*parts, "Continue from their results."])
