"""What an exchange and its surroundings tell each other: how candidates are asked for, what is seen."""

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
"""What the client gets: the answer that came, that answer repaired, or another candidate's."""

VisibleAnswer = Callable[[list[Item], AnswerSource], tuple[list[Item] | None, str]]
"""Given the answer: what the client will have seen, where that is not the answer itself since text of a
refused one was streamed before it; and the id of the response that the client saw begin, where that is
another one."""


@dataclass(frozen=True, slots=True)
class CandidateRequest:
    """How a candidate is asked for.

    Attributes:
        send: a body as what is to be yielded.
        received: what came of that as a payload; raises if it is none.
    """

    build_request: Callable[[bytes], Any]
    parse_response: Callable[[Any], dict[str, Any]]


def show_answer_unchanged(answer: list[Item], source: AnswerSource) -> tuple[list[Item] | None, str]:
    """The client sees the answer itself, and no other before it."""
    del answer, source
    return None, ""


class InterceptorServices(Protocol):
    """What an exchange needs of the engine that made it."""

    agent: str
    conversations: ConversationCache
    save_edits: Callable[[Conversation, Mapping[str, Any]], None] | None

    def start_session(
        self, adapter: ApiAdapter, body: Mapping[str, Any], steps: Sequence[Step], run_id: str
    ) -> Session:
        """Begin the session of a run."""
        ...


def release_claims(conversation: Conversation) -> None:
    """Calls that were claimed and that nobody ran: they may be made again."""
    session = conversation.session
    for claim in conversation.claims.values():
        session.end_tool(claim, "", is_refused=True)
    session.ledger.rewind(len(session))
    conversation.claims = {}


def format_repeated_calls(claims: Sequence[EffectClaim]) -> str:
    """What a model is told that asks for calls that were made, or may have been."""
    done = [claim.effect for claim in claims if claim.decision is ExecutionDecision.REUSE]
    doubt = [claim.effect for claim in claims if claim.decision is ExecutionDecision.OUTCOME_UNKNOWN]
    parts = ["[guard] Your last answer was dropped."]
    if done:
        parts.append(f"These calls have already taken effect; do not repeat them: {format_effects(done)}.")
    if doubt:
        parts.append(f"{UNKNOWN_OUTCOME_MESSAGE.removeprefix('[guard] ')} The call: {format_effects(doubt)}.")
    return " ".join([*parts, "Go on from what they returned."])
