"""Guarded exchange of a framework with its model: the interceptor on chat messages, without HTTP.

An integration of a framework that resends its history with each request uses it in three steps::

    exchange = ChatExchange(interceptor, body)     body: {"system": "...", "messages": [...], "tools": [...]}
    response = ask(exchange.body)                  unless exchange.final_text is not None
    payload = run(exchange.judge(payload))         the effects are bodies of further requests
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentguard import _sync_async
from agentguard.errors import RecoveryError
from agentguard.intercept.adapters.openai_chat import ChatAdapter
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import CandidateRequest, GuardedRequest
from agentguard.intercept.interceptor import Interceptor
from agentguard.trajectory.model import Usage


class FrameworkChatAdapter(ChatAdapter):
    """Adapter of chat messages whose system prompt is the field ``system`` of the body."""

    def extract_system_prompt(self, body: Mapping[str, Any]) -> str:
        """Return the system prompt."""
        return str(body.get("system") or "")


_ADAPTER = FrameworkChatAdapter()
_FAILURE_TEXT = "[guard] The request was refused: the guard failed."


class ChatExchange:
    """One request of a framework to its model.

    Args:
        interceptor: the interceptor, which has the conversations.
        body: the request in the format of the chat API; the exchange does not change it.

    Attributes:
        final_text: text of the guard that replaces an answer; None if the exchange needs a call of the model.
    """

    def __init__(self, interceptor: Interceptor, body: dict[str, Any]) -> None:
        self._interceptor, self._client_body = interceptor, body
        self._request: GuardedRequest | None = None
        self.final_text: str | None = None
        try:
            self._request = interceptor.open_request(_ADAPTER, body, run_name="", is_retry=True)
        except Exception as error:  # a failure of the guard must not fail the request
            self._handle_failure(error)
        else:
            self.final_text = self._request.final_text
        if self.final_text is not None:
            self._settle_final()

    @property
    def body(self) -> dict[str, Any]:
        """Return the request to send; the client's own object if the guard changes nothing."""
        return self._client_body if self._request is None else self._request.build_body()

    def judge(self, payload: dict[str, Any]) -> _sync_async.SharedBody[dict[str, Any]]:
        """Return the answer that the framework gets; yield bodies of further requests, receive answers.

        Args:
            payload: the answer to `body` in the format of the chat API, as `build_payload` returns it.
        """
        request = self._request
        if request is None:
            return payload
        try:
            while True:
                try:
                    decision = yield from request.judge_answer(payload, _CANDIDATE_REQUEST)
                except Exception as error:  # any error, as in `__init__`
                    request.discard()
                    self._handle_failure(error)
                    return payload if self.final_text is None else self._build_final(payload)
                if decision == "deliver":
                    return payload if request.replacement_payload is None else request.replacement_payload
                if decision == "final":
                    self.final_text = request.final_text
                    self._settle_final()
                    return self._build_final(payload)
                payload = yield request.build_body()
        finally:
            request.settle()

    def cancel(self) -> None:
        """Release the conversation of a request without an answer, so that a retry can continue it."""
        if self._request is not None:
            self._request.settle()

    def _settle_final(self) -> None:
        if self._request is not None:
            answer = {"role": "assistant", "content": self.final_text}
            self._request.settle([answer])

    def _build_final(self, payload: dict[str, Any]) -> dict[str, Any]:
        return _ADAPTER.build_final_answer({}, payload, self.final_text or "")

    def _handle_failure(self, error: Exception) -> None:
        self._interceptor.record_failure(error)
        if self._interceptor.fails_closed:
            self.final_text = _FAILURE_TEXT


def build_payload(message: Item, *, usage: Usage | None = None, model: str = "") -> dict[str, Any]:
    """Build an answer in the format of the chat API from the model's complete message."""
    payload: dict[str, Any] = {"id": None, "model": model, "choices": [_build_choice(message)]}
    if usage is not None:
        counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        payload["usage"] = counts
    return payload


def read_message(payload: Mapping[str, Any]) -> Item:
    """Return the message of an answer."""
    message: Item = payload["choices"][0]["message"]
    return message


def build_function_call(id: str, name: str, arguments: Any) -> Item:
    """Build a call of a message; arguments other than strings are encoded as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def _build_choice(message: Item) -> Item:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {"index": 0, "message": message, "finish_reason": finish}


def _parse_candidate(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise RecoveryError("a candidate is not a complete answer")
    return payload


_CANDIDATE_REQUEST = CandidateRequest(build_request=json.loads, parse_response=_parse_candidate)
