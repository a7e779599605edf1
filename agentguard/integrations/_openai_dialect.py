"""How one of OpenAI's APIs says what a run is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentguard.integrations._conversation import Item, Line
from agentguard.trajectory.model import Step, Usage


class Dialect(Protocol):
    """One API; `agentguard.integrations._openai_chat.Chat` says what each part is."""

    keeps: bool

    def guards(self, body: Mapping[str, Any]) -> bool: ...
    def items(self, body: Mapping[str, Any]) -> list[Item]: ...
    def key(self, item: Item) -> bytes: ...
    def turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]: ...
    def step(self, items: Sequence[Item], agent: str) -> Step: ...
    def result(self, item: Item) -> bool: ...
    def told(self, text: str) -> Item: ...
    def answer(self, payload: Mapping[str, Any]) -> list[Item] | None: ...
    def usage(self, payload: Mapping[str, Any]) -> Usage | None: ...
    def unchanged(self, line: Line, body: Mapping[str, Any], history: Sequence[Item]) -> bool: ...
    def body(
        self, body: Mapping[str, Any], line: Line, history: Sequence[Item], *, root: str | None
    ) -> dict[str, Any]: ...
    def final(
        self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str
    ) -> dict[str, Any]: ...


def steps_of(dialect: Dialect, items: Sequence[Item], agent: str) -> list[Step]:
    """All turns of a history as steps."""
    return [dialect.step(items[start:end], agent) for start, end in dialect.turns(items, 0)]


def response_key(id: str) -> bytes:
    """What a conversation is found by, where the client names the response that it continues."""
    return b"response:" + id.encode(errors="surrogatepass")
