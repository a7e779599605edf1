"""Adapter protocol of a model API: conversion of its requests and answers to the items of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentguard.intercept.conversation import ConversationBranch, Item
from agentguard.trajectory.model import Step, Usage


class ApiAdapter(Protocol):
    """Adapter between the requests and answers of one API and the steps of a run."""

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
        """Return True if the turn is a user or system prompt, without the cost of `build_step`."""
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
