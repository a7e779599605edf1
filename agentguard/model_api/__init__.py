"""How the answers of each API are told apart from those that broke off, and progress from heartbeats.

What is looked at is cheap first: bytes, then one decoding that skips what is not asked about. Nothing here
changes an answer, and no reason that it gives has anything of an answer's contents in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol


class ApiFormat(Protocol):
    """What is known of one API's answers; see `API_FORMATS` for those there are."""

    @property
    def name(self) -> str:
        """E.g. ``chat``, ``responses``, ``messages``."""
        ...

    def has_content(self, chunk: bytes) -> bool:
        """Whether whole events bring the answer on; comments, pings and empty deltas do not."""
        ...

    def is_last(self, chunk: bytes) -> bool:
        """Whether the API's last event is the last of these."""
        ...

    def find_chunk_error(self, chunk: bytes) -> str | None:
        """What is wrong with events: none of this API, malformed, or an error that stands in a stream."""
        ...

    def find_body_error(self, body: bytes, request_body: bytes = b"") -> str | None:
        """What is wrong with a whole answer of status 200, in one clause; None if it can be handed on.

        Args:
            body: the answer's.
            asked: the request's, for an API where it says what is right.
        """
        ...


def _load_formats() -> dict[str, ApiFormat]:
    from agentguard.model_api.anthropic_messages import MESSAGES
    from agentguard.model_api.openai_chat import CHAT, COMPLETIONS
    from agentguard.model_api.openai_embeddings import EMBEDDINGS
    from agentguard.model_api.openai_responses import RESPONSES

    found: tuple[ApiFormat, ...] = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES)
    return {api.name: api for api in found}


API_FORMATS: Final[Mapping[str, ApiFormat]] = MappingProxyType(_load_formats())
"""Name to API: ``chat``, ``completions``, ``embeddings``, ``responses``, ``messages``."""
