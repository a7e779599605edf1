"""Table of the guarded APIs, by their names in `agentguard.model_api`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentguard.intercept.adapters.anthropic_messages import AnthropicAdapter
from agentguard.intercept.adapters.anthropic_stream import AnthropicStreamBuffer
from agentguard.intercept.adapters.openai_chat import ChatAdapter
from agentguard.intercept.adapters.openai_chat_stream import ChatStreamBuffer
from agentguard.intercept.adapters.openai_responses import ResponsesAdapter
from agentguard.intercept.adapters.openai_responses_stream import ResponsesStreamBuffer
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.guarded_request import CandidateRequest, GuardedRequest
from agentguard.intercept.stream_buffer import EventStreamBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedApi:
    """Components of the interceptor for one API.

    Attributes:
        path_suffix: end of the path of its requests.
        adapter: adapter that translates its requests and answers.
        stream_buffer_class: class of its stream buffers.
    """

    path_suffix: str
    adapter: ApiAdapter
    stream_buffer_class: type[EventStreamBuffer]


GUARDED_APIS: Mapping[str, GuardedApi] = {
    "chat": GuardedApi(
        path_suffix="/chat/completions", adapter=ChatAdapter(), stream_buffer_class=ChatStreamBuffer
    ),
    "responses": GuardedApi(
        path_suffix="/responses", adapter=ResponsesAdapter(), stream_buffer_class=ResponsesStreamBuffer
    ),
    "messages": GuardedApi(
        path_suffix="/messages", adapter=AnthropicAdapter(), stream_buffer_class=AnthropicStreamBuffer
    ),
}


def build_stream_buffer(
    request: GuardedRequest, candidate_request: CandidateRequest, *, buffer_all: bool = False
) -> EventStreamBuffer:
    """Build the buffer for the streamed answers of a request; see `EventStreamBuffer`."""
    # A safety assessor must judge all text before the client sees it.
    buffer_all = buffer_all or request.session.config.safety_assessor is not None
    buffer_class = next(
        api.stream_buffer_class for api in GUARDED_APIS.values() if api.adapter is request.adapter
    )
    return buffer_class(request, candidate_request, buffer_all=buffer_all)
