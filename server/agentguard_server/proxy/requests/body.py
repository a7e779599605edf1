"""Request bodies: a reader with limits, and a parser of the fields that the proxy needs."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any, Final

import msgspec

from agentguard_server.proxy.config.schema import LimitsOptions
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.request_cycle import RequestCycle

_EMPTY: Final = msgspec.Raw()
_PREFIX_BYTES: Final = 4096
"""Length of the hashed prefix of a text."""
_MAX_MESSAGES: Final = 8
"""Upper bound on the hashed messages if there is no user message."""


class ClientDisconnected(Exception):
    """Disconnect of the client before the end of its request."""


class BodyMemory:
    """Memory that the incomplete bodies of one worker use.

    Attributes:
        buffered_bytes: bytes of all incomplete bodies.
    """

    __slots__ = ("buffered_bytes",)

    def __init__(self) -> None:
        self.buffered_bytes = 0


def buffered_body(cycle: RequestCycle, limits: LimitsOptions, content_length: bytes | None) -> bytes | None:
    """Return the body if it is complete; None if the rest is still to be read.

    Raises:
        ProxyError: 413 if the body, or the length that its header declares, exceeds the limit.
    """
    if (
        content_length is not None
        and len(content_length) < 20
        and int(content_length) > limits.max_body_bytes
    ):
        raise _body_too_large(limits.max_body_bytes)
    body = cycle.complete_body()
    if body is not None and len(body) > limits.max_body_bytes:
        raise _body_too_large(limits.max_body_bytes)
    return body


async def read_body(cycle: RequestCycle, limits: LimitsOptions, memory: BodyMemory) -> bytes:
    """Wait for the body, and return it.

    Raises:
        ProxyError: 413 if the body is too long; 408 if it takes too long; 503 if the incomplete bodies of all
            requests use too much memory.
        ClientDisconnected: the client has disconnected.
    """
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _receive_body(cycle, limits, memory)
    except TimeoutError:
        raise ProxyError(
            408, "request_timeout", "the body did not come in time", closes_connection=True
        ) from None
    finally:
        cycle.resume_reading()


async def _receive_body(cycle: RequestCycle, limits: LimitsOptions, memory: BodyMemory) -> bytes:
    parts, size = [], 0
    try:
        while True:
            part = await cycle.receive_part()
            if part is None:
                raise ClientDisconnected
            if part:
                parts.append(part)
                size += len(part)
                memory.buffered_bytes += len(part)
                if size > limits.max_body_bytes:
                    raise _body_too_large(limits.max_body_bytes)
                if memory.buffered_bytes > limits.max_buffered_bytes:
                    raise ProxyError(
                        503,
                        "overloaded",
                        "too much is being sent at once",
                        retry_after_s=1,
                        closes_connection=True,
                    )
            if not cycle.more_body:
                return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        memory.buffered_bytes -= size


def _body_too_large(limit: int) -> ProxyError:
    return ProxyError(413, "request_too_large", f"a body has at most {limit:,} bytes", closes_connection=True)


class RequestFields(msgspec.Struct, gc=False):
    """Fields of a body that all model APIs share; their values are not validated.

    Attributes:
        model: model of the request.
        stream: true for a streamed response.
        background: true if the client fetches the response later (responses API).
    """

    model: Any = None
    stream: Any = None
    background: Any = None
    prompt_cache_key: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    user: Any = None

    @property
    def session_key(self) -> str:
        """Return the first identifier that the requests of a session share; empty if the body has none."""
        if self.prompt_cache_key is None and self.conversation is None and self.user is None:
            return ""
        for given in (self.prompt_cache_key, self.conversation, self.user):
            if isinstance(given, str) and given:
                return given
        return ""


class _PromptFields(RequestFields, gc=False):
    """Fields of a body with the prompt; decoding takes slightly longer."""

    messages: msgspec.Raw = _EMPTY
    input: msgspec.Raw = _EMPTY
    prompt: msgspec.Raw = _EMPTY
    system: msgspec.Raw = _EMPTY
    instructions: msgspec.Raw = _EMPTY


class _Message(msgspec.Struct, gc=False):
    role: Any = None


_FIELDS_DECODER: Final = msgspec.json.Decoder(RequestFields)
_PROMPT_DECODER: Final = msgspec.json.Decoder(_PromptFields)
_ITEMS_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MESSAGE_DECODER: Final = msgspec.json.Decoder(_Message)


def inspect_body(body: bytes) -> RequestFields:
    """Parse a body. Raises ProxyError with status 400 if it is not a JSON object."""
    try:
        return _FIELDS_DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _invalid_json(error) from None


def inspect_body_with_prefix(body: bytes) -> tuple[RequestFields, bytes]:
    """Parse a body and hash the prefix of its prompt, up to the first user message.

    Requests of one run share this prefix. Runs of one task share it, too, and a replica may have it cached.

    Raises:
        ProxyError: status 400 if the body is not a JSON object.
    """
    try:
        found = _PROMPT_DECODER.decode(body)
        digest = blake2b(digest_size=16)
        for text in (found.system, found.instructions, found.prompt):
            digest.update(bytes(text)[:_PREFIX_BYTES])
        for part in (found.messages, found.input):
            _hash_prefix(digest, bytes(part))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _invalid_json(error) from None
    return found, digest.digest()


def _hash_prefix(digest: blake2b, part: bytes) -> None:
    if not part.startswith(b"["):
        digest.update(part[:_PREFIX_BYTES])
        return
    for item in _ITEMS_DECODER.decode(part)[:_MAX_MESSAGES]:
        whole = bytes(item)
        digest.update(whole)
        if whole.startswith(b"{") and _MESSAGE_DECODER.decode(whole).role == "user":
            return


def _invalid_json(error: Exception) -> ProxyError:
    if isinstance(error, RecursionError):
        return ProxyError(400, "invalid_json", "the body is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return ProxyError(400, "invalid_json", "the body must be an object of JSON")
    return ProxyError(400, "invalid_json", "the body is not valid JSON")
