"""Faults of a model at the HTTP exchanges of its API, for the clients of frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentguard.bundles.captured_run import build_exchange_name
from agentguard.chaos.faults import (
    Fault,
    FaultNotApplicable,
    FaultyCall,
    InvalidBody,
    ModelStatusError,
    StreamCut,
)
from agentguard.errors import FormatError
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.chat_branch import build_messages, build_step
from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.trajectory.model import Step

_JSON: Final = {"content-type": "application/json"}
_EVENT_STREAM: Final = {"content-type": "text/event-stream"}
_CUT_BODY: Final = '{"id": "'


def find_adapter(name: str) -> ApiAdapter | None:
    """Return the adapter of the guarded API of an exchange, if there is one."""
    return next(
        (
            api.adapter
            for api in GUARDED_APIS.values()
            if name == build_exchange_name("POST", api.path_suffix)
        ),
        None,
    )


class ModelExchange:
    """Exchange with a model API, whose complete answer may get a fault.

    Args:
        adapter: adapter of the API.
        body: body of the request.
    """

    def __init__(self, adapter: ApiAdapter, body: Mapping[str, Any]) -> None:
        self._adapter, self._body, self._is_cut = adapter, body, False

    def build_request(self) -> dict[str, Any]:
        """Return the request for a complete answer, without a stream."""
        removed = ("stream", "stream_options") if self._body.get("stream") else ()
        return {"body": {name: value for name, value in self._body.items() if name not in removed}}

    def encode(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the response for the client, as a stream of events if the client requested a stream."""
        payload = response["body"]
        if not self._body.get("stream") or response["status"] != 200 or not isinstance(payload, dict):
            return response
        options = self._body.get("stream_options") or {}
        events = self._adapter.encode_stream(
            payload, include_usage=bool(options.get("include_usage"))
        ).decode()
        end = len(events) // 2 if self._is_cut else len(events)
        return {"status": 200, "headers": _EVENT_STREAM, "body": events[:end]}

    def apply(self, fault: Fault, call: FaultyCall) -> dict[str, Any]:
        """Return the response with a fault.

        Raises:
            FaultNotApplicable: the fault has no meaning at this answer.
            httpx2.TransportError: the fault is a network error.
        """
        import httpx2

        message = None if call.result is None else self._read_message(call.result)
        try:
            answer = fault.apply(FaultyCall(arguments=self._body, result=message, earlier=call.earlier))
        except ModelStatusError as error:
            body = {"error": {"message": str(error), "type": "injected_fault", "code": error.status}}
            return {"status": error.status, "headers": _JSON, "body": body}
        except InvalidBody:
            return {"status": 200, "headers": _JSON, "body": _CUT_BODY}
        except StreamCut as error:
            if not self._body.get("stream"):
                raise httpx2.RemoteProtocolError(str(error)) from None
            self._is_cut = True
            return dict(call.result)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(str(error)) from None
        except ConnectionError as error:
            raise httpx2.RemoteProtocolError(str(error)) from None
        if any(answer is earlier for _, earlier in call.earlier):
            return dict(answer)
        return call.result if answer is message else self._replace_answer(call.result, answer)

    def _read_message(self, response: Mapping[str, Any]) -> dict[str, Any]:
        payload = response["body"]
        items = self._adapter.extract_answer_items(payload) if isinstance(payload, dict) else None
        if response["status"] != 200 or items is None:
            raise FaultNotApplicable
        try:
            return build_messages(self._adapter.build_step(items, "agent"))[0]
        except FormatError:
            raise FaultNotApplicable from None

    def _replace_answer(
        self, response: Mapping[str, Any] | None, message: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the response with another message of the chat API."""
        payload = response["body"] if response is not None else None
        step: Step = build_step(message)
        if step.tool_calls and payload is not None:
            changed = self._adapter.apply_repaired_turn(payload, step)
        else:
            changed = self._adapter.build_final_answer(self._body, payload, step.content)
        if changed == payload:
            raise FaultNotApplicable
        return {"status": 200, "headers": _JSON, "body": changed}
