"""Stream resumption: another replica continues an interrupted stream, and the client sees one stream.

The pool appends the received text to the request and sends it to a resumable replica. For chat, the text is a
final assistant message with vLLM's ``continue_final_message``; for completions, it follows the prompt. The
continuation gets the first response's ID. A comment in the stream and the `notes` report the resumption.

Responses that cannot be joined are not resumed: partial tool calls, reasoning, several choices, log
probabilities, constrained output. The text continues as the model would from that text, which may differ from
the lost rest: a token may be split, and a ``stop`` sequence across the seam is not detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import orjson

from agentguard.backends.base import BackendRequest, Headers, StreamingResponse
from agentguard.errors import AgentGuardError, BackendError, DeadlineExceeded, ResilienceError
from agentguard.model_api.json_rewrite import append_item, decode_field, parse_fields, replace_fields
from agentguard.model_api.sse import extract_data, parse_payloads, split_events
from agentguard.resilience.stream_timeout import close_response

_COMMON_FIELDS = ("id", "created", "model")
_TOKEN_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
_MIN_TOKENS_FIELD = "min_tokens"
_FORMAT_FIELDS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "echo",
    "suffix",
)
_TOKEN_DETAIL_FIELDS = ("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "use_beam_search")


class NotResumable(AgentGuardError):
    """A stream cannot be resumed; the message is the reason in one clause."""

    code = "unfit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialResponse:
    """Part of a response that the client has received.

    Attributes:
        api: ``chat`` or ``completions``.
        common_fields: chunk fields that the rest must repeat: id, created, model.
        text: received text.
        token_count: number of chunks with text; at least this many tokens were received.
    """

    api: str
    common_fields: dict[str, Any]
    text: str
    token_count: int

    @property
    def resume_text(self) -> str:
        """Return the text to send, without trailing spaces, and for chat without leading spaces.

        Many templates strip them, and then servers do not find the message to continue (vLLM #9547,
        transformers #34214 and #35433). Also, most tokens begin with their space.
        """
        return self.text.strip() if self.api == "chat" else self.text.rstrip()

    @property
    def trailing_whitespace(self) -> str:
        """Return the end of the text that is not sent; the rest will repeat it."""
        return self.text[len(self.text.rstrip()) :]


def parse_partial_response(api: str, forwarded: bytes) -> PartialResponse:
    """Parse the forwarded part of a response. Raises NotResumable if it cannot be resumed."""
    text: list[str] = []
    common_fields: dict[str, Any] = {}
    try:
        for chunk in parse_payloads(forwarded):
            common_fields = common_fields or {key: chunk[key] for key in _COMMON_FIELDS if key in chunk}
            text += [_extract_text(api, choice) for choice in chunk.get("choices") or ()]
    except (ValueError, AttributeError, TypeError):
        raise NotResumable("the forwarded part cannot be parsed") from None
    return PartialResponse(
        api=api, common_fields=common_fields, text="".join(text), token_count=sum(map(bool, text))
    )


def _extract_text(api: str, choice: Any) -> str:
    """Return the text of a choice's delta. Raises NotResumable if the delta contains anything else."""
    if choice.get("index", 0) != 0:
        raise NotResumable("it has several choices")
    if choice.get("finish_reason"):
        raise NotResumable("only its last event is missing")
    if choice.get("logprobs"):
        raise NotResumable("it has log probabilities")
    if api == "completions":
        return str(choice.get("text") or "")
    delta = choice.get("delta") or {}
    other_fields = sorted(key for key, part in delta.items() if part and key not in ("role", "content"))
    if other_fields:
        raise NotResumable(f"it has more than text: {', '.join(other_fields)}")
    return str(delta.get("content") or "")


def build_resume_request(request: BackendRequest, partial: PartialResponse) -> bytes:
    """Build the body that requests the rest.

    Raises:
        NotResumable: the request cannot be resumed.
        BackendError: the body is not a JSON object.
    """
    fields = parse_fields(request.body)
    options = {
        key: decode_field(raw) for key, raw in fields.items() if key not in ("messages", "prompt", "tools")
    }
    _check_resumable(options)
    changes: dict[str, Any] = {
        name: max(1, options[name] - partial.token_count)
        for name in _TOKEN_LIMIT_FIELDS
        if isinstance(options.get(name), int)
    }
    if isinstance(options.get(_MIN_TOKENS_FIELD), int):
        changes[_MIN_TOKENS_FIELD] = max(0, options[_MIN_TOKENS_FIELD] - partial.token_count)
    if partial.resume_text and partial.api == "chat":
        message = orjson.dumps({"role": "assistant", "content": partial.resume_text})
        try:
            changes["messages"] = append_item(fields["messages"], message)
        except (KeyError, BackendError):
            raise NotResumable("its messages are not a list") from None
        changes |= {"add_generation_prompt": False, "continue_final_message": True}
    elif partial.resume_text:
        prompt = decode_field(fields.get("prompt"))
        if not isinstance(prompt, str):
            raise NotResumable("its prompt is not text")
        changes["prompt"] = prompt + partial.resume_text
    return replace_fields(request.body, changes)


def _check_resumable(body: dict[str, Any]) -> None:
    """Check that a second answer can be appended to the first. Raises NotResumable."""
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        raise NotResumable("it asks for several choices")
    unsupported_fields = [
        name for name in (*_FORMAT_FIELDS, *_TOKEN_DETAIL_FIELDS) if body.get(name) not in (None, False, 0)
    ]
    if unsupported_fields:
        raise NotResumable(f"it asks for {', '.join(unsupported_fields)}")
    kind = body.get("response_format")
    if kind is not None and not (isinstance(kind, dict) and kind.get("type") == "text"):
        raise NotResumable("its response has a required format")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise NotResumable("it forces a tool")
    if body.get("continue_final_message"):
        raise NotResumable("it continues a message by itself")


class StreamSplicer:
    """Editor of the events of a continuation.

    Usage is reported as for one response. The repeated text moves from prompt to completion tokens, by the
    number of chunks, each at least one token. The sum equals the server's count.
    """

    def __init__(self, partial: PartialResponse) -> None:
        self._partial, self._known_whitespace = partial, partial.trailing_whitespace

    def rewrite(self, chunk: bytes) -> bytes:
        """Rewrite complete events for the client; return no bytes if they contain nothing new.

        Raises:
            BackendError: an event cannot be joined.
        """
        try:
            return b"".join(self._rewrite_event(event) for event in split_events(chunk))
        except (ValueError, TypeError, AttributeError):
            raise BackendError("the rest cannot be appended to the response", stage="committed") from None

    def _rewrite_event(self, event: bytes) -> bytes:
        data = extract_data(event)
        if data is None or data == b"[DONE]":
            return event
        chunk = orjson.loads(data)
        chunk.update(self._partial.common_fields)
        choices = [choice for choice in chunk.get("choices") or () if self._rewrite_choice(choice)]
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._merge_usage(usage)
        if chunk.get("choices") and not choices and not usage:
            return b""
        chunk["choices"] = choices
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def _rewrite_choice(self, choice: dict[str, Any]) -> bool:
        """Rewrite a choice; return whether any content remains."""
        chat = self._partial.api == "chat"
        content: Any = choice.get("delta") if chat else choice
        if not isinstance(content, dict):
            return True
        if chat:
            content.pop("role", None)
        field = "content" if chat else "text"
        text = content.get(field)
        if isinstance(text, str):
            content[field] = self._strip_known_whitespace(text)
        has_content = any(content.values()) if chat else bool(content.get("text"))
        return has_content or bool(choice.get("finish_reason"))

    def _strip_known_whitespace(self, text: str) -> str:
        """Remove leading spaces that the client has already received."""
        position = 0
        while self._known_whitespace and position < len(text):
            if text[position] != self._known_whitespace[0]:
                self._known_whitespace = ""
                break
            self._known_whitespace, position = self._known_whitespace[1:], position + 1
        return text[position:]

    def _merge_usage(self, usage: dict[str, Any]) -> None:
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int) and self._partial.resume_text:
            moved_tokens = min(self._partial.token_count, prompt)
            usage["prompt_tokens"], usage["completion_tokens"] = (
                prompt - moved_tokens,
                completion + moved_tokens,
            )


RESUMABLE_APIS = frozenset({"chat", "completions"})

MAX_RESUMABLE_BYTES = 4 << 20
"""Maximum forwarded size of a resumable stream."""


class ResumeCallback(Protocol):
    """Function that requests the rest of a response."""

    async def __call__(self, body: bytes, *, prefixed: bool, why: str) -> Any:
        """Send the body; if ``prefixed``, only to a resumable replica. Raises ResilienceError."""
        ...


class ResumableStream:
    """Stream that another replica resumes after an interruption; see `StreamingResponse`.

    Forwarded chunks are stored as received, and parsed only for a resumption.
    """

    def __init__(
        self, stream: StreamingResponse, request: BackendRequest, resume: ResumeCallback, max_resumptions: int
    ) -> None:
        self.status: int = stream.status
        self.headers: Headers = stream.headers
        self.replica: str = stream.replica
        self.notes: tuple[tuple[str, str], ...] = stream.notes
        self._stream, self._request, self._resume, self._resumptions_left = (
            stream,
            request,
            resume,
            max_resumptions,
        )
        self._forwarded_chunks: list[bytes] = []
        self._size = 0
        self._rewrite: Callable[[bytes], bytes] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                chunk = await self._stream.__anext__()
                if self._rewrite is not None:
                    chunk = self._rewrite(chunk)
            except ResilienceError as error:
                chunk = await self._resume_after(error)
            if chunk:
                self._remember_chunk(chunk)
                return chunk

    async def aclose(self) -> None:
        """Close the current source."""
        await self._stream.aclose()

    def _remember_chunk(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= MAX_RESUMABLE_BYTES:
            self._forwarded_chunks.append(chunk)
        else:
            self._forwarded_chunks.clear()

    async def _resume_after(self, error: ResilienceError) -> bytes:
        """Resume the stream and return its first chunk; raise the original error if that fails."""
        # the stream has already ended, unless one of its chunks could not be rewritten
        await close_response(self._stream)
        if (
            not self._resumptions_left
            or self._size > MAX_RESUMABLE_BYTES
            or isinstance(error, DeadlineExceeded)
        ):
            raise error
        self._resumptions_left -= 1
        try:
            partial = parse_partial_response(
                self._request.api.name if self._request.api else "", b"".join(self._forwarded_chunks)
            )
            body, splicer = build_resume_request(self._request, partial), StreamSplicer(partial)
            stream = await self._resume(body, prefixed=bool(partial.resume_text), why=error.code)
        except (NotResumable, ResilienceError):
            raise error from None
        if not hasattr(stream, "__anext__"):
            raise error
        self._stream, self._rewrite = stream, splicer.rewrite
        self.notes = (*self.notes, ("continued", str(stream.replica)))
        return b": agentguard: continued by %b\n\n" % str(stream.replica).encode("ascii", "replace")
