"""How a model API says what a run is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentguard.intercept.conversation import ConversationBranch, Item
from agentguard.trajectory.model import Source, Step, Usage


class ApiAdapter(Protocol):
    """One API."""

    stores_history: bool
    """Whether the server keeps the history."""

    def can_guard(self, body: Mapping[str, Any]) -> bool:
        """Whether a request can be guarded."""
        ...

    def extract_items(self, body: Mapping[str, Any]) -> list[Item]:
        """The history in a request; it is not empty."""
        ...

    def build_item_key(self, item: Item) -> bytes:
        """What an item is known again by when a client resends it; empty where it may be left out."""
        ...

    def split_turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]:
        """Turns from ``start`` on, as first place and end: an answer with its results, or one item alone."""
        ...

    def build_step(self, items: Sequence[Item], agent: str) -> Step:
        """A turn as a step. Raises FormatError if it is malformed."""
        ...

    def add_results(self, step: Step, results: Sequence[Item]) -> Step:
        """An answer's step with what its calls returned. Raises FormatError if that is malformed."""
        ...

    def is_prompt(self, items: Sequence[Item]) -> bool:
        """Whether a turn is a user's or a system prompt; `step` says so at more cost."""
        ...

    def is_result(self, item: Item) -> bool:
        """Whether an item is what a call returned."""
        ...

    def build_guard_item(self, text: str) -> Item:
        """What the guard says, as an item."""
        ...

    def extract_answer_items(self, payload: Mapping[str, Any]) -> list[Item] | None:
        """The items of a whole answer; None if it was cut off or filtered, or is none."""
        ...

    def extract_usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """What an answer cost, if it says so."""
        ...

    def apply_repaired_turn(self, payload: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """The answer with the text and the calls of ``step``, which was made of it and repaired since."""
        ...

    def replace_result_text(self, item: Item, text: str) -> Item:
        """What a call returned, with another text."""
        ...

    def extract_system_prompt(self, body: Mapping[str, Any]) -> str:
        """The system prompt that stands beside the history; empty where it is one of its items."""
        ...

    def extract_tools(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools that are offered, as the chat and Responses APIs define them."""
        ...

    def remove_tools(self, body: dict[str, Any], disabled_tools: set[str]) -> dict[str, Any]:
        """The request without the tools that were taken away; itself where none of them is offered."""
        ...

    def encode_stream(self, payload: Mapping[str, Any], *, include_usage: bool) -> bytes:
        """A whole answer as a stream of events; ``usage`` says whether the client asked for its cost."""
        ...

    def is_unchanged(
        self, branch: ConversationBranch, body: Mapping[str, Any], history: Sequence[Item]
    ) -> bool:
        """Whether the request says just what the line says."""
        ...

    def build_body(
        self,
        body: Mapping[str, Any],
        branch: ConversationBranch,
        history: Sequence[Item],
        *,
        root_response_id: str | None,
    ) -> dict[str, Any]:
        """The request with the line's view in place of the history."""
        ...

    def build_final_answer(
        self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str
    ) -> dict[str, Any]:
        """An answer of the guard that ends the run; a refusal where the client expects JSON."""
        ...


def build_steps(adapter: ApiAdapter, items: Sequence[Item], agent: str) -> list[Step]:
    """All turns of a history as steps."""
    return [adapter.build_step(items[start:end], agent) for start, end in adapter.split_turns(items, 0)]


def select_context_steps(adapter: ApiAdapter, items: Sequence[Item], agent: str) -> list[Step]:
    """The steps that a run goes back to: its first one if that was given, and what a user asked for last."""
    turns = [items[start:end] for start, end in adapter.split_turns(items, 0)]
    given = (adapter.build_step(turn, agent) for turn in reversed(turns) if adapter.is_prompt(turn))
    asked = next((step for step in given if step.source is Source.USER), None)
    first = [adapter.build_step(turn, agent) for turn in turns[:1] if adapter.is_prompt(turn)]
    return first if asked is None else [*first, asked]


def build_response_key(response_id: str) -> bytes:
    """What a conversation is found by, where the client names the response that it continues."""
    return b"response:" + response_id.encode(errors="surrogatepass")
