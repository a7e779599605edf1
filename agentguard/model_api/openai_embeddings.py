"""OpenAI's embeddings API; it has no streams."""

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
    """Format of embeddings; see `agentguard.model_api.ApiFormat`. Any stream is an error."""

    name: Final = "embeddings"

    def has_content(self, chunk: bytes) -> bool:
        """Return whether the chunk is not empty."""
        return bool(chunk)

    def is_last(self, chunk: bytes) -> bool:
        """Return False."""
        del chunk
        return False

    def find_chunk_error(self, chunk: bytes) -> str | None:
        """Return an error, because embeddings have no streams."""
        del chunk
        return "the embeddings API has no streams"

    def find_body_error(self, body: bytes, request_body: bytes = b"") -> str | None:
        """Return an error, or None for a valid answer. Vectors are lists of numbers or base64.

        An answer without vectors is valid for a request without input. Otherwise a client could cause errors
        that count against a replica.
        """
        answer = _decode_body(body)
        if not isinstance(answer, str):
            if not answer.data and isinstance(_decode_empty_input(request_body), str):
                return find_error(body) or "it is not a response of the embeddings API: there are no vectors"
            has_invalid_vector = any(bytes(item.embedding)[:1] not in (b"[", b'"') for item in answer.data)
            return (
                "it is not a response of the embeddings API: a vector is not a list of numbers"
                if has_invalid_vector
                else None
            )
        return find_error(body) or f"it is not a response of the embeddings API: {answer}"


EMBEDDINGS: Final = EmbeddingsFormat()
