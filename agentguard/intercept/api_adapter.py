"""How a model API says what a run is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentguard.intercept.conversation import ConversationBranch, Item
from agentguard.trajectory.model import Source, Step, Usage


class ApiAdapter(Protocol):
    """One API."""

    keeps: bool
    """Whether the server keeps the history."""

    def guards(self, body: Mapping[str, Any]) -> bool:
        """Whether a request can be guarded."""
        ...

    def items(self, body: Mapping[str, Any]) -> list[Item]:
        """The history in a request; it is not empty."""
        ...

    def key(self, item: Item) -> bytes:
        """What an item is known again by when a client resends it; empty where it may be left out."""
        ...

    def turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]:
        """Turns from ``start`` on, as first place and end: an answer with its results, or one item alone."""
        ...

    def step(self, items: Sequence[Item], agent: str) -> Step:
        """A turn as a step. Raises FormatError if it is malformed."""
        ...

    def answered(self, step: Step, results: Sequence[Item]) -> Step:
        """An answer's step with what its calls returned. Raises FormatError if that is malformed."""
        ...

    def given(self, items: Sequence[Item]) -> bool:
        """Whether a turn is a user's or a system prompt; `step` says so at more cost."""
        ...

    def result(self, item: Item) -> bool:
        """Whether an item is what a call returned."""
        ...

    def told(self, text: str) -> Item:
        """What the guard says, as an item."""
        ...

    def answer(self, payload: Mapping[str, Any]) -> list[Item] | None:
        """The items of a whole answer; None if it was cut off or filtered, or is none."""
        ...

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """What an answer cost, if it says so."""
        ...

    def repaired(self, payload: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """The answer with the text and the calls of ``step``, which was made of it and repaired since."""
        ...

    def result_saying(self, item: Item, text: str) -> Item:
        """What a call returned, with another text."""
        ...

    def system(self, body: Mapping[str, Any]) -> str:
        """The system prompt that stands beside the history; empty where it is one of its items."""
        ...

    def tools(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools that are offered, as the chat and Responses APIs define them."""
        ...

    def without_tools(self, body: dict[str, Any], withheld: set[str]) -> dict[str, Any]:
        """The request without the tools that were taken away; itself where none of them is offered."""
        ...

    def stream(self, payload: Mapping[str, Any], *, usage: bool) -> bytes:
        """A whole answer as a stream of events; ``usage`` says whether the client asked for its cost."""
        ...

    def unchanged(self, line: ConversationBranch, body: Mapping[str, Any], history: Sequence[Item]) -> bool:
        """Whether the request says just what the line says."""
        ...

    def body(
        self, body: Mapping[str, Any], line: ConversationBranch, history: Sequence[Item], *, root: str | None
    ) -> dict[str, Any]:
        """The request with the line's view in place of the history."""
        ...

    def final(self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str) -> dict[str, Any]:
        """An answer of the guard that ends the run; a refusal where the client expects JSON."""
        ...


def steps_of(dialect: ApiAdapter, items: Sequence[Item], agent: str) -> list[Step]:
    """All turns of a history as steps."""
    return [dialect.step(items[start:end], agent) for start, end in dialect.turns(items, 0)]


def basis_of(dialect: ApiAdapter, items: Sequence[Item], agent: str) -> list[Step]:
    """The steps that a run goes back to: its first one if that was given, and what a user asked for last."""
    turns = [items[start:end] for start, end in dialect.turns(items, 0)]
    given = (dialect.step(turn, agent) for turn in reversed(turns) if dialect.given(turn))
    asked = next((step for step in given if step.source is Source.USER), None)
    first = [dialect.step(turn, agent) for turn in turns[:1] if dialect.given(turn)]
    return first if asked is None else [*first, asked]


def response_key(id: str) -> bytes:
    """What a conversation is found by, where the client names the response that it continues."""
    return b"response:" + id.encode(errors="surrogatepass")
