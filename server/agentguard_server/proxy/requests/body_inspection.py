"""Reads of a model API's body what the proxy needs, and leaves the rest of it alone."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from agentguard_server.proxy.errors import ProxyError

_EMPTY: Final = msgspec.Raw()
_PREFIX_BYTES: Final = 4096
"""Bytes of a text that tell its beginning."""
_MAX_MESSAGES: Final = 8
"""Messages in which the first of a user is looked for."""


class RequestFields(msgspec.Struct, gc=False):
    """What a body asks for, whichever API it is of.

    Attributes:
        model: that it names; whatever stands there.
        stream: whether a stream is wanted.
        background: whether the answer is fetched later (responses).
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
        """What the requests of one run have in common, as far as the body says."""
        if self.prompt_cache_key is None and self.conversation is None and self.user is None:
            return ""
        for given in (self.prompt_cache_key, self.conversation, self.user):
            if isinstance(given, str) and given:
                return given
        return ""


class _PromptFields(RequestFields, gc=False):
    """Also how the prompt begins; costs a little more."""

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
    """Read a body. Raises Refusal with status 400 unless it is one object of JSON."""
    try:
        return _FIELDS_DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _invalid_json(error) from None


def inspect_body_with_prefix(body: bytes) -> tuple[RequestFields, bytes]:
    """Read a body, and a digest of how its prompt begins: all up to the first message of a user.

    Requests of one run have that in common; so have runs of one task, whose prefix a server may have cached.

    Raises:
        Refusal: with status 400 unless it is one object of JSON.
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
