"""Buffer for streamed answers: events that the client must not receive before the verdict.

The buffer forwards text at once. It buffers events from the first tool call, or from the end of the answer,
until the verdict. It forwards an accepted answer. After a rejection the caller repeats the request, and the
events of the next answer continue the same answer. Subclasses implement the event types of an API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from agentguard import _sync_async
from agentguard.intercept.adapters.openai_chat import requires_json
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import AnswerSource, CandidateRequest, Decision, GuardedRequest
from agentguard.model_api.sse import EventReader, parse_event_fast

_PARSE_ERRORS = (TypeError, AttributeError, ValueError)
"""Exceptions raised by events of an unexpected shape."""


class EventStreamBuffer(ABC):
    """Buffer for one stream to the client, and for all answers to its request.

    Args:
        request: the request that judges the answers.
        candidate_request: functions that request further candidates.
        buffer_all: buffer text too, so that the client receives no part of a rejected answer.
    """

    def __init__(
        self, request: GuardedRequest, candidate_request: CandidateRequest, *, buffer_all: bool = False
    ) -> None:
        self._request, self._candidate_request = request, candidate_request
        self._buffer_all = buffer_all or requires_json(request.request_body)
        self._buffered_events: list[tuple[bytes, dict[str, Any] | None]] = []
        self._answer_head: dict[str, Any] = {}
        self._follows_rejected = False
        self._parse_error: Exception | None = None
        self._reset()

    def feed(self, data: bytes) -> bytes:
        """Process bytes of the current answer; return the bytes to forward to the client."""
        forwarded_events = [self._process_event(event) for event in self._event_reader.feed(data)]
        return forwarded_events[0] if len(forwarded_events) == 1 else b"".join(forwarded_events)

    def finish(self) -> _sync_async.SharedBody[tuple[bytes, Decision]]:
        """Judge the answer after its last byte; yield the effects that request further candidates.

        Raises:
            EOFError: the answer is incomplete.
        """
        if self._parse_error is not None:
            raise self._parse_error
        if self._has_error_event:
            self._request.settle()
            return self.flush(), "deliver"
        decision = yield from self._request.judge_answer(
            self._build_payload(), self._candidate_request, self._build_visible_answer
        )
        if decision == "again":
            return self._begin_retry(), decision
        if decision == "final":
            return self._encode_final_answer(), decision
        self._request.settle()
        replacement, source = self._request.replacement_payload, self._request.answer_source
        return (
            self.flush() if replacement is None else self._encode_replacement(replacement, source)
        ), decision

    def build_answer(self) -> dict[str, Any] | None:
        """Return the answer without a verdict, for passive interception; None if it is an error.

        Raises:
            EOFError: the answer is incomplete.
        """
        if self._parse_error is not None:
            raise self._parse_error
        return None if self._has_error_event else self._build_payload()

    def flush(self) -> bytes:
        """Return all buffered events, without a verdict."""
        buffered_events, self._buffered_events = self._buffered_events, []
        return (
            b"".join([self._try_rewrite_event(event, value) for event, value in buffered_events])
            + self._event_reader.remainder
        )

    @abstractmethod
    def build_error_event(self, message: str) -> bytes:
        """Build the event that reports that a retry of the model call failed."""

    @abstractmethod
    def _handle_event(self, event: bytes, value: dict[str, Any]) -> None:
        """Process an event; set ``_is_buffering`` to buffer this and later events.

        ``value`` is only partly parsed. Use `parse_event` for data that may be sent again.
        """

    def _handle_other_event(self, event: bytes) -> None:
        """Process an event whose data is not a JSON object; most carry no information."""
        del event

    @abstractmethod
    def _rewrite_event(self, event: bytes, value: dict[str, Any]) -> bytes:
        """Return the event for the client: unchanged, or as part of the first answer of the stream."""

    @abstractmethod
    def _build_payload(self) -> dict[str, Any]:
        """Build the answer from its events. Raises EOFError if it is incomplete."""

    @abstractmethod
    def _build_visible_answer(
        self, answer: list[Item], source: AnswerSource
    ) -> tuple[list[Item] | None, str]:
        """Return the visible items and response ID; see `VisibleAnswer`."""

    @abstractmethod
    def _encode_replacement(self, payload: dict[str, Any], source: AnswerSource) -> bytes:
        """Encode the events of an answer that replaces the buffered one."""

    @abstractmethod
    def _begin_retry(self) -> bytes:
        """Prepare for another answer; return the bytes that the client gets before it."""

    @abstractmethod
    def _encode_final_answer(self) -> bytes:
        """Encode the guard's final answer and the end of the stream."""

    def _reset(self) -> None:
        """Reset the state for another answer."""
        self._event_reader = EventReader()
        self._buffered_events = []
        self._is_buffering, self._has_error_event = self._buffer_all, False

    def _process_event(self, event: bytes) -> bytes:
        value = parse_event_fast(event)
        try:
            if value is None:
                self._handle_other_event(event)
            else:
                self._handle_event(event, value)
        except _PARSE_ERRORS as error:
            self._parse_error, self._is_buffering = error, True
        if self._is_buffering:
            self._buffered_events.append((event, value))
            return b""
        return self._try_rewrite_event(event, value)

    def _try_rewrite_event(self, event: bytes, value: dict[str, Any] | None) -> bytes:
        try:
            return event if value is None else self._rewrite_event(event, value)
        except _PARSE_ERRORS as error:
            self._parse_error = self._parse_error or error
            return event
