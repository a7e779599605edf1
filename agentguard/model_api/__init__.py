"""Recognition of API answers: complete or interrupted, content or heartbeat, valid or wrong.

A check first searches the bytes, and decodes them only if necessary, once and without unused fields. No check
changes an answer. A returned reason does not contain content of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol


class ApiFormat(Protocol):
    """Answer format of one API; `API_FORMATS` lists the known formats."""

    @property
    def name(self) -> str:
        """Key of the format in `API_FORMATS`, such as ``chat``."""
        ...

    def has_content(self, chunk: bytes) -> bool:
        """Return whether complete events carry content; comments, pings and empty deltas do not."""
        ...

    def is_last(self, chunk: bytes) -> bool:
        """Return whether the last of the events is the final event of the API."""
        ...

    def find_chunk_error(self, chunk: bytes) -> str | None:
        """Return a reason for an event that is malformed, of another API or an error; otherwise None."""
        ...

    def find_body_error(self, body: bytes, request_body: bytes = b"") -> str | None:
        """Return, in one clause, the error in a complete answer of status 200; None if it is valid.

        Args:
            body: body of the answer.
            request_body: body of the request, for APIs in which it determines the valid answers.
        """
        ...


def _load_formats() -> dict[str, ApiFormat]:
    from agentguard.model_api.anthropic_messages import MESSAGES
    from agentguard.model_api.openai_chat import CHAT, COMPLETIONS
    from agentguard.model_api.openai_embeddings import EMBEDDINGS
    from agentguard.model_api.openai_responses import RESPONSES

    formats: tuple[ApiFormat, ...] = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES)
    return {api.name: api for api in formats}


API_FORMATS: Final[Mapping[str, ApiFormat]] = MappingProxyType(_load_formats())
"""Formats by name: ``chat``, ``completions``, ``embeddings``, ``responses``, ``messages``."""
