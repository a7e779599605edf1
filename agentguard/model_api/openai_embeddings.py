"""OpenAI's embeddings: whole answers only."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from agentguard.model_api.decoding import StructDecoder, find_error


class _Embedding(msgspec.Struct):
    embedding: msgspec.Raw


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class _EmptyInput(msgspec.Struct):
    input: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=0)]


_decode_body, _decode_empty_input = StructDecoder(_Embeddings), StructDecoder(_EmptyInput)


class EmbeddingsFormat:
    """See `agentguard.model_api.ApiFormat`; a stream of it is a fault, whatever it brings."""

    name: Final = "embeddings"

    def has_content(self, chunk: bytes) -> bool:
        """Whether there is anything."""
        return bool(chunk)

    def is_last(self, chunk: bytes) -> bool:
        """Never."""
        del chunk
        return False

    def find_chunk_error(self, chunk: bytes) -> str | None:
        """That it is a stream."""
        del chunk
        return "embeddings do not come as a stream"

    def find_body_error(self, body: bytes, request_body: bytes = b"") -> str | None:
        """An error, no vectors, or not this API's JSON. Vectors are lists of numbers or base64.

        There may be none for a request with none: its client must not make a replica look broken.
        """
        found = _decode_body(body)
        if not isinstance(found, str):
            if not found.data and isinstance(_decode_empty_input(request_body), str):
                return find_error(body) or "it is no answer of the embeddings API: there are no vectors"
            odd = any(bytes(one.embedding)[:1] not in (b"[", b'"') for one in found.data)
            return "it is no answer of the embeddings API: a vector is no vector" if odd else None
        return find_error(body) or f"it is no answer of the embeddings API: {found}"


EMBEDDINGS: Final = EmbeddingsFormat()
