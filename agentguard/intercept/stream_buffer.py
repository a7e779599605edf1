"""The hold on a stream: what of an answer the client may not see before the guard has judged it.

What is text flows on at once. From what the client would act on, or the end, on, events are held until the
answer is whole and judged; then the held bytes follow as they came, or the model is asked again and its
answer's events follow in the same stream, as events of the same answer. What an event is differs between
the APIs, and is said by the subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from agentguard import _sync_async
from agentguard.intercept.adapters.openai_chat import requires_json
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.types import AnswerSource, CandidateRequest, Decision
from agentguard.model_api.sse import EventReader, parse_event_fast

_PARSE_ERRORS = (TypeError, AttributeError, ValueError)
"""What reading an event of another shape raises."""


class EventStreamBuffer(ABC):
    """Holds back what the client may not see yet; one stream, all the answers that are asked for in it.

    Args:
        exchange: judges the answers.
        wire: how further candidates of an answer are asked for.
        everything: hold text, too, so that the client sees nothing of a refused answer.
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
        """Take bytes of the current answer; returns what the client may have."""
        shown = [self._process_event(event) for event in self._event_reader.feed(data)]
        return shown[0] if len(shown) == 1 else b"".join(shown)

    def finish(self) -> _sync_async.Effects[tuple[bytes, Decision]]:
        """The answer's bytes are over: judge it; yields what asks for further candidates.

        Raises:
            EOFError: it is not whole.
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
        taken, how = self._request.replacement_payload, self._request.answer_source
        return (self.flush() if taken is None else self._encode_replacement(taken, how)), decision

    def build_answer(self) -> dict[str, Any] | None:
        """The answer that was fed, for those who only look at it; None if it is an error.

        Raises:
            EOFError: it is not whole.
        """
        if self._parse_error is not None:
            raise self._parse_error
        return None if self._has_error_event else self._build_payload()

    def flush(self) -> bytes:
        """All that is held, without a verdict."""
        held, self._buffered_events = self._buffered_events, []
        return (
            b"".join([self._try_rewrite_event(event, value) for event, value in held])
            + self._event_reader.remainder
        )

    @abstractmethod
    def build_error_event(self, message: str) -> bytes:
        """What the client gets when the model could not be asked again."""

    @abstractmethod
    def _handle_event(self, event: bytes, value: dict[str, Any]) -> None:
        """Take in what an event says; sets ``_holding`` where it and what follows are to be held.

        What is kept of it, and may be sent again, is to be `parsed`: ``value`` is only skimmed.
        """

    def _handle_other_event(self, event: bytes) -> None:
        """Take in an event whose data is no object; most say nothing by it."""
        del event

    @abstractmethod
    def _rewrite_event(self, event: bytes, value: dict[str, Any]) -> bytes:
        """The event as the client gets it: as it came, or as one of the answer that was begun."""

    @abstractmethod
    def _build_payload(self) -> dict[str, Any]:
        """The answer that the events make. Raises EOFError if it is not whole."""

    @abstractmethod
    def _build_visible_answer(
        self, answer: list[Item], source: AnswerSource
    ) -> tuple[list[Item] | None, str]:
        """As `agentguard.intercept.types.VisibleAnswer`."""

    @abstractmethod
    def _encode_replacement(self, payload: dict[str, Any], source: AnswerSource) -> bytes:
        """An answer that takes the place of the one that is held, as events."""

    @abstractmethod
    def _begin_retry(self) -> bytes:
        """Another answer follows; returns what the client gets in between."""

    @abstractmethod
    def _encode_final_answer(self) -> bytes:
        """The guard's last word, and the end of the stream."""

    def _reset(self) -> None:
        """Begin another answer."""
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
