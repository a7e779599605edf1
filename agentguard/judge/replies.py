"""What an endpoint sent, read with suspicion: every field may be missing or of another type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import orjson

from agentguard.judge.wire import Failed, Fault, Reply, Spent

_STATUS: Final = {401: Fault.REFUSED, 403: Fault.REFUSED, 404: Fault.NO_MODEL, 408: Fault.SERVER,
                  413: Fault.TOO_LONG, 429: Fault.BUSY, 503: Fault.BUSY}  # fmt: skip
_TOO_LONG: Final = ("context length", "context_length", "maximum context", "too long", "input_tokens")
_MOST_WAIT_S: Final = 3_600.0


def failure(error: Exception) -> Failed:
    """The fault behind what a client raised; its message holds nothing that the endpoint wrote."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return Failed(fault=Fault.TIMEOUT, message="the endpoint did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        return Failed(fault=Fault.UNREACHABLE, message="the endpoint cannot be reached, or broke off")
    if isinstance(error, openai.APIStatusError):
        return _status(error.status_code, error.response.headers, error.response.text)
    if isinstance(error, (ValueError, TypeError, openai.OpenAIError)):
        return Failed(fault=Fault.MALFORMED, message="the endpoint's answer cannot be read")
    return Failed(fault=Fault.UNREACHABLE, message=f"the call ended with {type(error).__name__}")


def read_reply(data: Any, seconds: float) -> Reply | Failed:
    """Read a chat completion; `Fault.MALFORMED` if it is none, or says that it failed."""
    malformed = Failed(fault=Fault.MALFORMED, message="the endpoint's answer is no chat completion")
    choices = _at(data, "choices")
    if not isinstance(choices, list) or not choices:
        return malformed
    text = _at(_at(choices[0], "message"), "content")
    if text is not None and not isinstance(text, str):
        return malformed
    finish = _at(choices[0], "finish_reason")
    return Reply(
        text=text or "",
        finish=finish if isinstance(finish, str) else "",
        logprobs=_logprobs(_at(_at(choices[0], "logprobs"), "content")),
        spent=spent(_at(data, "usage"), seconds),
    )


def json_object(reply: Reply, schema: Mapping[str, Any]) -> Mapping[str, Any] | Failed:
    """The object a reply holds, checked against the schema that was asked for."""
    import jsonschema_rs

    if reply.finish != "stop":
        return Failed(fault=Fault.CUT, message="the answer was broken off before its end")
    try:
        value = orjson.loads(reply.text)
    except ValueError:
        return Failed(fault=Fault.MALFORMED, message="the answer is no JSON")
    if not isinstance(value, dict) or not jsonschema_rs.is_valid(dict(schema), value):
        return Failed(fault=Fault.OUTSIDE, message="the answer does not fit the schema that was asked for")
    return value


def _status(status: int, headers: Mapping[str, str], body: str) -> Failed:
    if status == 400:
        long = any(sign in body[:2_000].lower() for sign in _TOO_LONG)
        return Failed(
            fault=Fault.TOO_LONG if long else Fault.BAD_REQUEST,
            message="the prompt is longer than the model reads"
            if long
            else "the endpoint refused the request",
        )
    fault = _STATUS.get(status, Fault.SERVER if status >= 500 else Fault.BAD_REQUEST)
    return Failed(
        fault=fault,
        message=f"the endpoint answered {status}",
        retry_after_s=_seconds(headers.get("retry-after")),
    )


def _seconds(text: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header (RFC 9110, 10.2.3); its form with a date is not used by servers."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return min(value, _MOST_WAIT_S) if math.isfinite(value) and value >= 0 else None


def _logprobs(content: Any) -> dict[str, float]:
    """Token text to log probability at the first position; a text that several tokens share, summed."""
    first = content[0] if isinstance(content, list) and content else None
    listed = _at(first, "top_logprobs")
    masses: dict[str, list[float]] = {}
    for one in [*(listed if isinstance(listed, list) else []), *([] if listed else [first])]:
        token, value = _at(one, "token"), _at(one, "logprob")
        if isinstance(token, str) and isinstance(value, (int, float)) and math.isfinite(value):
            masses.setdefault(token.strip(), []).append(math.exp(min(0.0, float(value))))
    return {token: math.log(total) for token, held in masses.items() if (total := math.fsum(held)) > 0}


def spent(usage: Any, seconds: float) -> Spent:
    """What a call cost, by the usage that its answer tells."""
    return Spent(
        calls=1,
        prompt_tokens=_count(_at(usage, "prompt_tokens")),
        completion_tokens=_count(_at(usage, "completion_tokens")),
        cached_tokens=_count(_at(_at(usage, "prompt_tokens_details"), "cached_tokens")),
        seconds=seconds,
    )


def _at(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
