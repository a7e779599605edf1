"""Conversations, their branches, and the cache of conversations that wait for a request.

A client resends its whole history in each request, including turns that were rolled back. Therefore a
conversation stores the items of the client's history that are on its current branch, by index, and the
guard's messages between them. All edits add or remove complete turns.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from agentguard.runtime.session import Session
from agentguard.trajectory.model import Step

Item = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class BranchStep:
    """One step of a branch.

    Attributes:
        items: items of the step; each is an index in the client's history, or an item that is not in it.
        is_prompt: whether the step is a user or system prompt; a rollback keeps such steps.
        guard_items: messages of the guard directly before the step.
        stored_response_id: ID of the response that contained the step, if the server stores responses.
        stored_item_count: number of leading items that the server stores with that response.
    """

    items: list[int | Item]
    is_prompt: bool = False
    guard_items: list[Item] = field(default_factory=list)
    stored_response_id: str | None = None
    stored_item_count: int = 0


class ConversationBranch:
    """Current branch of a conversation, with one `BranchStep` per step."""

    def __init__(self) -> None:
        self.steps: list[BranchStep] = []
        self.pending_guard_items: list[Item] = []

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    def add_step(self, step: BranchStep) -> None:
        """Add a step together with the pending guard items."""
        step.guard_items, self.pending_guard_items = self.pending_guard_items, []
        self.steps.append(step)

    def add_guard_item(self, item: Item) -> None:
        """Add an item of the guard at the end."""
        self.pending_guard_items.append(item)

    def replace_item(self, step: int, item_index: int, item: Item) -> None:
        """Replace item ``item_index`` of a step; later steps then do not refer to responses on the server."""
        self.steps[step].items[item_index] = item
        for later in self.steps[step + (item_index >= self.steps[step].stored_item_count) :]:
            later.stored_response_id = None

    def truncate(self, from_step: int) -> None:
        """Remove the agent's steps from ``from_step`` on; prompts stay."""
        prompts = [
            BranchStep(items=step.items, is_prompt=True) for step in self.steps[from_step:] if step.is_prompt
        ]
        self.steps[from_step:] = prompts
        self.pending_guard_items = []

    def collect_item_refs(self, *, from_step: int = 0) -> list[int | Item]:
        """Return all items from ``from_step`` on, in the order of the request."""
        item_refs: list[int | Item] = []
        for step in self.steps[from_step:]:
            item_refs += [*step.guard_items, *step.items]
        return item_refs + self.pending_guard_items

    def split_at_stored_response(self) -> tuple[str | None, list[int | Item]]:
        """Return the ID of the last response on the branch that the server stores, and the items after it."""
        for count in range(len(self.steps), 0, -1):
            step = self.steps[count - 1]
            if step.stored_response_id is not None:
                return step.stored_response_id, [
                    *step.items[step.stored_item_count :],
                    *self.collect_item_refs(from_step=count),
                ]
        return None, self.collect_item_refs()


def resolve_items(item_refs: Sequence[int | Item], history: Sequence[Item]) -> list[Item]:
    """Return the items, with each index replaced by the item in the client's history."""
    return [history[one] if isinstance(one, int) else one for one in item_refs]


@dataclass(eq=False, slots=True, kw_only=True)
class Conversation:
    """One guarded conversation; at most one request at a time uses it.

    Attributes:
        session: session of the current run.
        first_run_id: ID of the first run.
        run_name: client's name of its runs; empty without a name.
        branch: current branch.
        step_offset: number of steps on the branch before the current run; other runs made them.
        processed_item_count: number of the client's items that are on the branch or were rolled back.
        claims: effect claims of the calls in the last answer, by call ID.
        answer_step: the last answer as a step, if it has calls and was delivered unchanged.
        disabled_tools: tools that a recovery disabled in this run.
        run_count: number of runs; each task of a user starts one.
        is_finished: whether the current run has ended; the next request starts another run.
        continuation_keys: keys of the histories that continue the conversation.
        retry_key: key of the latest request with an answer.
        history: the client's items, if the client does not resend them.
        root_response_id: ID of the last response of a history before the conversation, on the server.
        stored_response_id: ID of the response that contained the last answer.
        answer: last answer in the form that the client received.
        replacement: items that replace this answer in the next request, if they differ.
        superseded_response_ids: IDs of rejected responses that the client received in part.
        waiting_since: monotonic time in seconds at which the conversation began to wait for a request.
        abandoned_turns: keys of turns that were rolled back (`agentguard.intercept.history_edits`).
        version: incremented when shared state is saved or applied.
        size_bytes: size of the last request, an estimate of the memory use.
        shared_history_keys: keys under which other processes find the history; None if they do not need it.
        shared_item_count: number of items stored under these keys.
    """

    session: Session
    first_run_id: str
    run_name: str = ""
    branch: ConversationBranch = field(default_factory=ConversationBranch)
    step_offset: int = 0
    processed_item_count: int = 0
    claims: dict[str, Any] = field(default_factory=dict)
    answer_step: Step | None = None
    disabled_tools: set[str] = field(default_factory=set)
    run_count: int = 1
    is_finished: bool = False
    continuation_keys: tuple[bytes, ...] = ()
    retry_key: bytes = b""
    history: list[Item] = field(default_factory=list)
    root_response_id: str | None = None
    stored_response_id: str | None = None
    answer: list[Item] = field(default_factory=list)
    replacement: list[Item] | None = None
    superseded_response_ids: tuple[str, ...] = ()
    waiting_since: float = 0.0
    abandoned_turns: set[str] = field(default_factory=set)
    version: int = 0
    size_bytes: int = 0
    shared_history_keys: tuple[str, ...] | None = ()
    shared_item_count: int = 0

    def clear_answer(self) -> None:
        """Clear the state of the last answer after the next request has been processed."""
        self.claims, self.answer, self.replacement, self.stored_response_id, self.superseded_response_ids = (
            {},
            [],
            None,
            None,
            (),
        )
        self.answer_step = None


_MAX_ACTIVE_CONVERSATIONS: Final = 64
"""Number of waiting conversations whose sessions keep their detectors in memory."""

_KeyIndex = dict[bytes, list[Conversation]]
"""Conversations by key, oldest first; several clients may send the same history."""


class ConversationCache:
    """Thread-safe LRU cache of conversations that wait for their next request.

    The sessions of all but the latest 64 release their detectors.

    Args:
        max_conversations: maximum number of conversations.
        max_bytes: maximum total size; the cache keeps the newest conversation even if it is larger.
        on_evict: called with each evicted conversation.
    """

    def __init__(
        self,
        max_conversations: int,
        *,
        max_bytes: int | None = None,
        on_evict: Callable[[Conversation], None] | None = None,
    ) -> None:
        self._max_conversations, self._max_bytes, self._on_evict = max_conversations, max_bytes, on_evict
        self._total_bytes = 0
        self._lock = threading.Lock()
        self._waiting: OrderedDict[int, Conversation] = OrderedDict()
        self._active: OrderedDict[int, Conversation] = OrderedDict()
        self._by_continuation_key: _KeyIndex = {}
        self._by_retry_key: _KeyIndex = {}

    def __len__(self) -> int:
        """Return the number of waiting conversations."""
        with self._lock:
            return len(self._waiting)

    def __contains__(self, key: bytes) -> bool:
        """Return whether a conversation waits for a request with this key."""
        with self._lock:
            return key in self._by_continuation_key

    def pop_latest(self, keys: Sequence[bytes]) -> Conversation | None:
        """Remove and return the conversation that one of the keys continues; later keys take precedence."""
        with self._lock:
            for key in reversed(keys):
                if key in self._by_continuation_key:
                    return self._remove(self._by_continuation_key[key][-1])
            return None

    def pop_unique(self, key: bytes) -> Conversation | None:
        """Remove and return the conversation with this key; None unless exactly one conversation has it."""
        with self._lock:
            candidates = self._by_continuation_key.get(key, ())
            return self._remove(candidates[0]) if len(candidates) == 1 else None

    def pop_retried(self, key: bytes) -> Conversation | None:
        """Remove and return the conversation whose latest answered request had this key, or None."""
        with self._lock:
            candidates = self._by_retry_key.get(key)
            return self._remove(candidates[-1]) if candidates else None

    def put(
        self, conversation: Conversation, continuation_keys: Sequence[bytes], retry_key: bytes = b""
    ) -> None:
        """Add a conversation that waits for a request with one of the keys."""
        with self._lock:
            conversation.continuation_keys, conversation.retry_key = (
                tuple(dict.fromkeys(continuation_keys)),
                retry_key,
            )
            conversation.waiting_since = time.monotonic()
            self._waiting[id(conversation)] = self._active[id(conversation)] = conversation
            self._total_bytes += conversation.size_bytes
            for key in conversation.continuation_keys:
                self._by_continuation_key.setdefault(key, []).append(conversation)
            if retry_key:
                self._by_retry_key.setdefault(retry_key, []).append(conversation)
            evicted_conversations = []
            while self._is_over_limit():
                evicted_conversations.append(self._remove(next(iter(self._waiting.values()))))
            inactive = None
            if len(self._active) > _MAX_ACTIVE_CONVERSATIONS:
                _, inactive = self._active.popitem(last=False)
        if inactive is not None:
            inactive.session.release_detectors()
        if self._on_evict is not None:
            for evicted in evicted_conversations:
                self._on_evict(evicted)

    def _is_over_limit(self) -> bool:
        is_too_large = self._max_bytes is not None and self._total_bytes > self._max_bytes
        return len(self._waiting) > self._max_conversations or (is_too_large and len(self._waiting) > 1)

    def pop_idle(self, idle_s: float) -> list[Conversation]:
        """Remove and return the conversations that have waited longer than ``idle_s`` seconds."""
        idle_since, idle_conversations = time.monotonic() - idle_s, list[Conversation]()
        with self._lock:
            for conversation in list(self._waiting.values()):
                if conversation.waiting_since > idle_since:
                    break
                idle_conversations.append(self._remove(conversation))
        return idle_conversations

    def _remove(self, conversation: Conversation) -> Conversation:
        if self._waiting.pop(id(conversation), None) is not None:
            self._total_bytes -= conversation.size_bytes
        self._active.pop(id(conversation), None)
        for key in conversation.continuation_keys:
            _remove_from_index(self._by_continuation_key, key, conversation)
        if conversation.retry_key:
            _remove_from_index(self._by_retry_key, conversation.retry_key, conversation)
        return conversation


def _remove_from_index(index: _KeyIndex, key: bytes, conversation: Conversation) -> None:
    entries = index.get(key, [])
    if conversation in entries:
        entries.remove(conversation)
        if not entries:
            del index[key]


def encode_canonical(value: Any) -> bytes:
    """Encode JSON data so that equal data gives equal bytes; the order of keys does not matter."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits, or a lone surrogate
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def build_response_key(response_id: str) -> bytes:
    """Build the key of a conversation whose client names the response that it continues."""
    return b"response:" + response_id.encode(errors="surrogatepass")


def extend_key(prefix_key: bytes, items: Sequence[Item], build_item_key: Callable[[Item], bytes]) -> bytes:
    """Return the key of a longer history, given the key of its prefix; see `build_prefix_keys`."""
    for item in items:
        item_key = build_item_key(item)
        prefix_key = hashlib.sha256(prefix_key + item_key).digest() if item_key else prefix_key
    return prefix_key


def build_prefix_keys(
    items: Sequence[Item],
    build_item_key: Callable[[Item], bytes],
    *,
    seed: str = "",
    known_keys: Sequence[bytes] = (),
) -> list[bytes]:
    """Return a key for each prefix of the items, the empty prefix first.

    Each key is the hash of the previous key and an item. An item with an empty key leaves the key unchanged,
    because clients may omit it when they resend the history. ``known_keys`` are the keys of the first
    prefixes, if the caller has them.
    """
    keys = list(known_keys) or [hashlib.sha256(seed.encode(errors="surrogatepass")).digest()]
    prefix_key = keys[-1]
    for item in items[len(keys) - 1 :]:
        item_key = build_item_key(item)
        prefix_key = hashlib.sha256(prefix_key + item_key).digest() if item_key else prefix_key
        keys.append(prefix_key)
    return keys


def release_claims(conversation: Conversation) -> None:
    """Release the claims of calls that the client has not executed, so that it may execute them later."""
    session = conversation.session
    for claim in conversation.claims.values():
        session.end_tool(claim, "", is_refused=True)
    session.ledger.rewind(len(session))
    conversation.claims = {}
