"""Parsers of an endpoint's responses; every field may be missing or have another type."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from agentguard.judge.llm.types import (
    CallError,
    CallUsage,
    EndpointInfo,
    EndpointOptions,
    ErrorKind,
    JudgeReply,
    LabelProbabilities,
    TokenLogprobs,
)

if TYPE_CHECKING:
    import openai

_ERROR_BY_STATUS: Final = {
    401: ErrorKind.REFUSED,
    403: ErrorKind.REFUSED,
    404: ErrorKind.NO_MODEL,
    408: ErrorKind.SERVER,
    413: ErrorKind.TOO_LONG,
    429: ErrorKind.BUSY,
    503: ErrorKind.BUSY,
}
_TOO_LONG_PHRASES: Final = ("context length", "context_length", "maximum context", "too long", "input_tokens")
_CONNECT_ERRORS: Final = frozenset({"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"})
"""Errors of the HTTP client before a request is sent."""
_MAX_RETRY_AFTER_S: Final = 3_600.0


def to_call_error(error: Exception) -> CallError:
    """Convert an exception of the client; the message contains no text of the endpoint."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return CallError(kind=ErrorKind.TIMEOUT, message="the endpoint did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        return _parse_connection_error(error)
    if isinstance(error, openai.APIStatusError):
        return _parse_status_error(error.status_code, error.response.headers, error.response.text)
    if isinstance(error, (ValueError, TypeError, openai.OpenAIError)):
        return CallError(kind=ErrorKind.MALFORMED, message="the endpoint's answer cannot be read")
    return CallError(kind=ErrorKind.UNREACHABLE, message=f"the call ended with {type(error).__name__}")


def parse_completion(data: Any, seconds: float) -> JudgeReply | CallError:
    """Parse a chat completion; return `ErrorKind.MALFORMED` if the data is not a valid one."""
    malformed = CallError(kind=ErrorKind.MALFORMED, message="the endpoint's answer is not a chat completion")
    choices = _get_key(data, "choices")
    if not isinstance(choices, list) or not choices:
        return malformed
    text = _get_key(_get_key(choices[0], "message"), "content")
    if text is not None and not isinstance(text, str):
        return malformed
    finish = _get_key(choices[0], "finish_reason")
    return JudgeReply(
        text=text or "",
        finish_reason=finish if isinstance(finish, str) else "",
        tokens=_parse_tokens(_get_key(_get_key(choices[0], "logprobs"), "content")),
        usage=parse_usage(_get_key(data, "usage"), seconds),
    )


def parse_json_answer(reply: JudgeReply, schema: Mapping[str, Any]) -> Mapping[str, Any] | CallError:
    """Parse the reply's JSON object and validate it against the requested schema."""
    import jsonschema_rs

    if reply.finish_reason != "stop":
        return CallError(kind=ErrorKind.TRUNCATED, message="the answer is truncated")
    try:
        value = orjson.loads(reply.text)
    except ValueError:
        return CallError(kind=ErrorKind.MALFORMED, message="the answer is not JSON")
    if not isinstance(value, dict) or not jsonschema_rs.is_valid(dict(schema), value):
        return CallError(kind=ErrorKind.OUT_OF_SET, message="the answer does not match the requested schema")
    return value


def _parse_connection_error(error: openai.APIConnectionError) -> CallError:
    """Return the error of a failed connection, or of a connection that ended before the answer."""
    if type(error.__cause__).__name__ in _CONNECT_ERRORS:
        return CallError(kind=ErrorKind.UNREACHABLE, message="the endpoint accepts no connection")
    return CallError(
        kind=ErrorKind.UNREACHABLE,
        message="the endpoint closed the connection before its answer was complete",
        is_interrupted=True,
    )


def _parse_status_error(status: int, headers: Mapping[str, str], body: str) -> CallError:
    if status == 400:
        long = any(sign in body[:2_000].lower() for sign in _TOO_LONG_PHRASES)
        return CallError(
            kind=ErrorKind.TOO_LONG if long else ErrorKind.BAD_REQUEST,
            message="the prompt exceeds the context of the model"
            if long
            else "the endpoint refused the request",
        )
    fault = _ERROR_BY_STATUS.get(status, ErrorKind.SERVER if status >= 500 else ErrorKind.BAD_REQUEST)
    return CallError(
        kind=fault,
        message=f"the endpoint answered {status}",
        retry_after_s=_parse_retry_after(headers.get("retry-after")),
    )


def _parse_retry_after(text: str | None) -> float | None:
    """Parse the seconds of a ``Retry-After`` header (RFC 9110, 10.2.3); the date form is ignored."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return min(value, _MAX_RETRY_AFTER_S) if math.isfinite(value) and value >= 0 else None


def _parse_tokens(content: Any) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(text=text.strip(), logprobs=_parse_logprobs(item))
        for item in (content if isinstance(content, list) else [])
        if isinstance(text := _get_key(item, "token"), str)
    )


def _parse_logprobs(position: Any) -> dict[str, float]:
    """Map token text to log probability at a position; tokens with equal text are summed."""
    entries = _get_key(position, "top_logprobs")
    masses: dict[str, list[float]] = {}
    for entry in [*(entries if isinstance(entries, list) else []), *([] if entries else [position])]:
        token, value = _get_key(entry, "token"), _get_key(entry, "logprob")
        if isinstance(token, str) and isinstance(value, (int, float)) and math.isfinite(value):
            masses.setdefault(token.strip(), []).append(math.exp(min(0.0, float(value))))
    return {
        token: math.log(total) if (total := math.fsum(token_masses)) > 0 else -math.inf
        for token, token_masses in masses.items()
    }


def parse_usage(usage: Any, seconds: float) -> CallUsage:
    """Parse the usage of a chat completion; ``seconds`` is the duration of the call."""
    return CallUsage(
        calls=1,
        prompt_tokens=_parse_count(_get_key(usage, "prompt_tokens")),
        completion_tokens=_parse_count(_get_key(usage, "completion_tokens")),
        cached_tokens=_parse_count(_get_key(_get_key(usage, "prompt_tokens_details"), "cached_tokens")),
        seconds=seconds,
    )


def _get_key(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _parse_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


_LAST_WORD: Final = re.compile(r"\b(\w+)\W*$")


def parse_label_probabilities(
    reply: JudgeReply, labels: Sequence[str], *, is_unmasked: bool
) -> LabelProbabilities | CallError:
    """Return the probabilities of the labels for a reply that is one label."""
    if reply.finish_reason not in {"stop", "length"}:
        return CallError(kind=ErrorKind.TRUNCATED, message="the answer was filtered or truncated")
    if reply.text.strip() not in labels:
        return CallError(kind=ErrorKind.OUT_OF_SET, message="the answer is not one of the labels")
    return _normalize_masses(reply, reply.tokens[0].logprobs if reply.tokens else {}, labels, is_unmasked)


def parse_reasoned_label(reply: JudgeReply, labels: Sequence[str]) -> LabelProbabilities | CallError:
    """Return the probabilities of the labels at the last word of a reply, which is its label."""
    if reply.finish_reason != "stop":
        return CallError(kind=ErrorKind.TRUNCATED, message="the reasoning ended before an answer")
    match = _LAST_WORD.search(reply.text.rpartition("</think>")[2])
    if match is None or match.group(1) not in labels:
        return CallError(kind=ErrorKind.OUT_OF_SET, message="the last word is not one of the labels")
    named = (token.logprobs for token in reversed(reply.tokens) if token.text == match.group(1))
    return _normalize_masses(reply, next(named, {}), labels, is_unmasked=True)


def _normalize_masses(
    reply: JudgeReply, logprobs: Mapping[str, float], labels: Sequence[str], is_unmasked: bool
) -> LabelProbabilities | CallError:
    masses = {label: math.exp(min(0.0, logprobs.get(label, -math.inf))) for label in labels}
    total = math.fsum(masses.values())
    if total <= 0.0:
        message = "the endpoint gives no log probabilities of the labels"
        return CallError(kind=ErrorKind.NO_PROBABILITIES, message=message)
    shares = {label: mass / total for label, mass in masses.items()}
    return LabelProbabilities(
        probabilities=shares, label_mass=min(1.0, total) if is_unmasked else None, usage=reply.usage
    )


def parse_endpoint_info(models: Any, model: str | None, options: EndpointOptions) -> EndpointInfo | CallError:
    """Return the facts about a model from an endpoint's list of models; ``model`` None selects the first."""
    entries = [item for item in models if isinstance(item, dict) and isinstance(item.get("id"), str)]
    entry = next((item for item in entries if model in (None, item["id"])), None)
    if entry is None and model is None:
        return CallError(kind=ErrorKind.NO_MODEL, message="the endpoint lists no model, and none was named")
    model_entry = entry or {"id": model}
    version = (
        f"{model_entry['id']} ({model_entry['root']})"
        if model_entry.get("root") not in (None, model_entry["id"])
        else model_entry["id"]
    )
    model_context = model_entry.get("max_model_len")
    is_vllm = options.dialect == "vllm" or (
        options.dialect == "auto" and model_entry.get("owned_by") == "vllm"
    )
    context = options.context_tokens or (model_context if isinstance(model_context, int) else None)
    return EndpointInfo(
        model=model_entry["id"],
        version=version,
        is_vllm=is_vllm,
        context_tokens=context,
        is_listed=not entries or bool(entry),
    )
