"""The APIs that can be guarded, by their names in `agentguard.model_api`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentguard.intercept.adapters.anthropic_messages import AnthropicAdapter
from agentguard.intercept.adapters.anthropic_stream import MessagesHold
from agentguard.intercept.adapters.openai_chat import Chat
from agentguard.intercept.adapters.openai_chat_stream import ChatHold
from agentguard.intercept.adapters.openai_responses import ResponsesAdapter
from agentguard.intercept.adapters.openai_responses_stream import ResponsesHold
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.stream_buffer import HeldStream
from agentguard.intercept.types import CandidateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardable:
    """One API.

    Attributes:
        path: what the path of its requests ends with.
        dialect: how it says what a run is made of.
        hold: the class of what holds its streams back.
    """

    path: str
    dialect: ApiAdapter
    hold: type[HeldStream]


APIS: Mapping[str, Guardable] = {
    "chat": Guardable(path="/chat/completions", dialect=Chat(), hold=ChatHold),
    "responses": Guardable(path="/responses", dialect=ResponsesAdapter(), hold=ResponsesHold),
    "messages": Guardable(path="/messages", dialect=AnthropicAdapter(), hold=MessagesHold),
}


def hold_of(exchange: GuardedRequest, wire: CandidateRequest, *, everything: bool = False) -> HeldStream:
    """What holds back the streams of an exchange; see `Hold`."""
    everything = (
        everything or exchange.session.config.safety_assessor is not None
    )  # what was seen is handed on
    made = next(api.hold for api in APIS.values() if api.dialect is exchange.dialect)
    return made(exchange, wire, everything=everything)
