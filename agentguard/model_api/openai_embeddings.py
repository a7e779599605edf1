"""OpenAI's embeddings: whole answers only."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from agentguard.model_api.decoding import Decoded, refusal


class _Embedding(msgspec.Struct):
    embedding: msgspec.Raw


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class _Asked(msgspec.Struct):
    input: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=0)]


_whole, _nothing = Decoded(_Embeddings), Decoded(_Asked)


class Embeddings:
    """See `agentguard.model_api.Api`; a stream of it is a fault, whatever it brings."""

    name: Final = "embeddings"

    def carries(self, chunk: bytes) -> bool:
        """Whether there is anything."""
        return bool(chunk)

    def ends(self, chunk: bytes) -> bool:
        """Never."""
        del chunk
        return False

    def fault(self, chunk: bytes) -> str | None:
        """That it is a stream."""
        del chunk
        return "embeddings do not come as a stream"

    def wrong(self, body: bytes, asked: bytes = b"") -> str | None:
        """An error, no vectors, or not this API's JSON. Vectors are lists of numbers or base64.

        There may be none for a request with none: its client must not make a replica look broken.
        """
        found = _whole(body)
        if not isinstance(found, str):
            if not found.data and isinstance(_nothing(asked), str):
                return refusal(body) or "it is no answer of the embeddings API: there are no vectors"
            odd = any(bytes(one.embedding)[:1] not in (b"[", b'"') for one in found.data)
            return "it is no answer of the embeddings API: a vector is no vector" if odd else None
        return refusal(body) or f"it is no answer of the embeddings API: {found}"


EMBEDDINGS: Final = Embeddings()
