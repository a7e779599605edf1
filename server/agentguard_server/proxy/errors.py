"""Errors of the proxy in the format of the client's API, as a body or an event, and in the log.

Bodies:

* OpenAI: ``{"error": {"message", "type", "param", "code"}}``
* Anthropic: ``{"type": "error", "error": {"type", "message"}, "request_id"}``

Events in a stream:

* chat, completions: a data line with the body of OpenAI
* responses: the event ``error``
* messages: the event ``error`` with the body of Anthropic
"""

from __future__ import annotations

import math
from dataclasses import replace
from email.utils import formatdate
from typing import Final

import orjson

from agentguard.backends.base import Response, UpstreamError
from agentguard.backends.load_balancer import NoReplica
from agentguard.errors import (
    AgentGuardError,
    BackendError,
    CircuitOpen,
    DeadlineExceeded,
    Overloaded,
    ResilienceError,
    RetriesExhausted,
    Stalled,
)
from agentguard_server.proxy.routes import ErrorShape

_OPENAI_ERROR_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_MESSAGES_ERROR_TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
_MAX_RETRY_AFTER_S: Final = 3600.0
_DRAINED_RETRY_AFTER_S: Final = 5.0
"""Retry delay if all replicas are drained; an operator decides how long this lasts."""


class ProxyError(AgentGuardError):
    """Error response of the proxy itself.

    Attributes:
        status: HTTP status.
        code: code of the error.
        reason: message for the client, without parts of its request.
        retry_after_s: seconds to wait before a retry; negative if the client must not retry. None if unknown.
        closes_connection: True if the connection cannot be used again.
    """

    def __init__(
        self,
        status: int,
        code: str,
        reason: str,
        *,
        retry_after_s: float | None = None,
        closes_connection: bool = False,
    ) -> None:
        self.status, self.code, self.reason = status, code, reason
        self.retry_after_s, self.closes_connection = retry_after_s, closes_connection
        super().__init__(reason)


def to_proxy_error(error: ResilienceError) -> ProxyError:
    """Convert an error of a model call into an error response."""
    last = error.last if isinstance(error, RetriesExhausted) else error
    if isinstance(last, NoReplica):
        if last.is_drained:
            return ProxyError(503, last.code, str(last), retry_after_s=_DRAINED_RETRY_AFTER_S)
        return ProxyError(404, "model_not_found", str(last))
    status = 502
    if isinstance(last, DeadlineExceeded | Stalled):
        status = 504
    elif isinstance(last, CircuitOpen | Overloaded):
        status = 503
    elif isinstance(last, BackendError) and last.status in (408, 429, 503, 529):
        status = 504 if last.status == 408 else (429 if last.status == 429 else 503)
    return ProxyError(status, error.code, str(error), retry_after_s=error.retry_after_s)


def find_upstream_response(error: BaseException) -> Response | None:
    """Return the endpoint's own error response, to be sent unchanged; None if there is no such response.

    Its notes have the number of attempts if there were several.
    """
    if not isinstance(error, RetriesExhausted):
        return error.response if isinstance(error, UpstreamError) else None
    if not isinstance(error.last, UpstreamError):
        return None
    response = error.last.response
    if error.attempts < 2:
        return response
    return replace(response, notes=(*response.notes, ("attempts", str(error.attempts))))


def encode_error_body(error: ProxyError, shape: ErrorShape, request_id: str) -> bytes:
    """Encode the error as a JSON body."""
    return orjson.dumps(_build_error_fields(error, shape, request_id))


def build_error_headers(error: ProxyError) -> list[tuple[bytes, bytes]]:
    """Return the headers of the error response, without the content length."""
    headers = [(b"content-type", b"application/json"), (b"date", formatdate(usegmt=True).encode())]
    retry_after_s = error.retry_after_s
    if retry_after_s is not None and retry_after_s >= 0:
        seconds = math.ceil(min(retry_after_s, _MAX_RETRY_AFTER_S))
        headers.append((b"retry-after", b"%d" % seconds))
    elif retry_after_s is not None:
        headers.append((b"x-should-retry", b"false"))
    if error.status == 405:
        headers.append((b"allow", b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"))  # RFC 9110, 15.5.6
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.closes_connection:
        headers.append((b"connection", b"close"))
    return headers


def encode_error_event(error: ProxyError, api: str, request_id: str) -> bytes:
    """Encode the error as the last event of a stream; no ``[DONE]`` follows it."""
    if api == "messages":
        return b"event: error\ndata: " + encode_error_body(error, "messages", request_id) + b"\n\n"
    if api == "responses":
        fields = {"type": "error", "code": error.code, "message": error.reason, "param": None}
        return b"event: error\ndata: " + orjson.dumps({**fields, "sequence_number": 0}) + b"\n\n"
    return b"data: " + encode_error_body(error, "openai", request_id) + b"\n\n"


def _build_error_fields(error: ProxyError, shape: ErrorShape, request_id: str) -> dict[str, object]:
    status = error.status
    if shape == "messages":
        kind = _MESSAGES_ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        fields = {"type": kind, "message": error.reason}
        return {"type": "error", "error": fields, "request_id": request_id}
    kind = _OPENAI_ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": error.reason, "type": kind, "param": None, "code": error.code}}


def summarize_error(error: BaseException) -> str:
    """Return type and location of an internal error for the log, without its message and variables."""
    where = format_error_location(error)
    return f"{type(error).__name__} at {where}" if where else type(error).__name__


def format_error_location(error: BaseException) -> str:
    """Return the location of an error: file, line and function; empty if it was never raised."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}"
