"""Partial parser of request bodies: decodes only the fields that the proxy needs."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from agentguard_server.proxy.errors import ProxyError

_EMPTY: Final = msgspec.Raw()
_PREFIX_BYTES: Final = 4096
"""Length of the hashed prefix of a text."""
_MAX_MESSAGES: Final = 8
"""Upper bound on the hashed messages if there is no user message."""


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
