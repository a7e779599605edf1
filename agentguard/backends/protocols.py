"""How the answers of each API are told apart from those that broke off, and progress from heartbeats."""

from __future__ import annotations

from typing import Protocol


class Api(Protocol):
    """What is known of one API's answers; see the module's registry for those there are."""

    @property
    def name(self) -> str:
        """E.g. ``chat``, ``responses``, ``messages``."""
        ...

    def carries(self, chunk: bytes) -> bool:
        """Whether whole events bring the answer on; comments, pings and empty deltas do not."""
        ...

    def ends(self, chunk: bytes) -> bool:
        """Whether the API's last event is the last of these."""
        ...

    def fault(self, chunk: bytes) -> str | None:
        """What is wrong with events: none of this API, malformed, or an error that stands in a stream."""
        ...

    def wrong(self, body: bytes) -> str | None:
        """What is wrong with a whole answer of status 200, in one clause; None if it can be handed on."""
        ...
