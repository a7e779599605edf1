"""Adapter protocol of a model API: translate its requests and answers to the items of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import orjson

from agentguard.intercept.conversation import ConversationBranch, Item
from agentguard.trajectory.formats.sdk import parse_tool_specs
from agentguard.trajectory.model import Source, Step, ToolSpec, Usage

_MAX_CACHED_BYTES: Final = 65_536
"""Size of a request's tools up to which their specifications are kept for other runs."""


class ApiAdapter(Protocol):
    """Translation between the requests and answers of one API and the steps of a run."""

    stores_history: bool
    """True if the server stores the history."""

    def can_guard(self, body: Mapping[str, Any]) -> bool:
        """Return True if the request can be guarded."""
        ...

    def extract_items(self, body: Mapping[str, Any]) -> list[Item]:
        """Return the history in a request; it is not empty."""
        ...

    def build_item_key(self, item: Item) -> bytes:
        """Return the key of an item that a client may resend; empty if the client may omit the item."""
        ...

    def split_turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]:
        """Return the turns from ``start`` as (start, end): an answer with its results, or a single item."""
        ...

    def build_step(self, items: Sequence[Item], agent: str) -> Step:
        """Convert a turn to a step.

        Raises:
            FormatError: the turn is malformed.
        """
        ...

    def add_results(self, step: Step, results: Sequence[Item]) -> Step:
        """Return the step of an answer with the results of its calls.

        Raises:
            FormatError: a result is malformed.
        """
        ...

    def is_prompt(self, items: Sequence[Item]) -> bool:
        """Return True if the turn is a user's or a system prompt; cheaper than `build_step`."""
        ...

    def is_result(self, item: Item) -> bool:
        """Return True if the item is the result of a tool call."""
        ...

    def build_guard_item(self, text: str) -> Item:
        """Build the item that carries a message of the guard."""
        ...

    def extract_answer_items(self, payload: Mapping[str, Any]) -> list[Item] | None:
        """Return the items of a complete answer; None if it is truncated, filtered or not an answer."""
        ...

    def extract_usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Return the token usage of an answer, if it reports any."""
        ...

    def apply_repaired_turn(self, payload: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """Return the answer with the text and the calls of ``step``, the repaired step of this answer."""
        ...

    def replace_result_text(self, item: Item, text: str) -> Item:
        """Return a copy of a tool result with another text."""
        ...

    def extract_system_prompt(self, body: Mapping[str, Any]) -> str:
        """Return the system prompt outside the history; empty if it is an item of the history."""
        ...

    def extract_tools(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the tool definitions of a request, in the form of the chat and Responses APIs."""
        ...

    def remove_tools(self, body: dict[str, Any], disabled_tools: set[str]) -> dict[str, Any]:
        """Return the request without the disabled tools; the same object if it defines none of them."""
        ...

    def encode_stream(self, payload: Mapping[str, Any], *, include_usage: bool) -> bytes:
        """Encode a complete answer as a stream of events, with its token usage if ``include_usage``."""
        ...

    def is_unchanged(
        self, branch: ConversationBranch, body: Mapping[str, Any], history: Sequence[Item]
    ) -> bool:
        """Return True if the history of the request equals the view of the branch."""
        ...

    def build_body(
        self,
        body: Mapping[str, Any],
        branch: ConversationBranch,
        history: Sequence[Item],
        *,
        root_response_id: str | None,
    ) -> dict[str, Any]:
        """Return the request with the view of the branch in place of the history."""
        ...

    def build_final_answer(
        self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str
    ) -> dict[str, Any]:
        """Build the answer of the guard that ends the run; a refusal if the client expects JSON."""
        ...


def build_steps(adapter: ApiAdapter, items: Sequence[Item], agent: str) -> list[Step]:
    """Convert all turns of a history to steps."""
    return [adapter.build_step(items[start:end], agent) for start, end in adapter.split_turns(items, 0)]


def select_context_steps(adapter: ApiAdapter, items: Sequence[Item], agent: str) -> list[Step]:
    """Return the prompts that a run restarts from: its first step, if a prompt, and the last user prompt."""
    turns = [items[start:end] for start, end in adapter.split_turns(items, 0)]
    prompts = (adapter.build_step(turn, agent) for turn in reversed(turns) if adapter.is_prompt(turn))
    last_user_prompt = next((step for step in prompts if step.source is Source.USER), None)
    first_steps = [adapter.build_step(turn, agent) for turn in turns[:1] if adapter.is_prompt(turn)]
    return first_steps if last_user_prompt is None else [*first_steps, last_user_prompt]


def build_response_key(response_id: str) -> bytes:
    """Build the key of a conversation whose client names the response that it continues."""
    return b"response:" + response_id.encode(errors="surrogatepass")


def parse_tools(tools: list[Any]) -> tuple[ToolSpec, ...]:
    """Parse tool definitions; runs that offer the same tools share the result.

    Raises:
        FormatError: a definition is not valid.
    """
    try:
        data = orjson.dumps(tools)
    except TypeError:  # integers beyond 64 bits, or a lone surrogate
        return parse_tool_specs(tools, "tools")
    return _parse_tools_json(data) if len(data) <= _MAX_CACHED_BYTES else parse_tool_specs(tools, "tools")


@lru_cache(maxsize=128)
def _parse_tools_json(data: bytes) -> tuple[ToolSpec, ...]:
    return parse_tool_specs(orjson.loads(data), "tools")
