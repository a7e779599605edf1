"""Conversations as a transport sees them: requests joined to runs, and the view that is sent upstream.

A client resends its whole history in each request, turns that were taken back among it. So a rewritten view
is *sticky*: a conversation remembers which of the client's items stand, by their place in its history, and
what the guard said between them. Everything here is cut and added by whole turns.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentguard.runtime.session import Session
from agentguard.trajectory.model import Step

Item = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class BranchStep:
    """One step of the line.

    Attributes:
        items: its items, each a place in the client's history or an item that the client never saw.
        given: whether a user or a system prompt gave it; such a step is never taken back.
        told: what the guard said right before it.
        anchor: id of the response that it came with, where the server keeps responses.
        kept: its first items, that many, are kept with that response.
    """

    items: list[int | Item]
    is_prompt: bool = False
    guard_items: list[Item] = field(default_factory=list)
    stored_response_id: str | None = None
    stored_item_count: int = 0


class ConversationBranch:
    """The live line of a conversation, one `Held` a step."""

    def __init__(self) -> None:
        self.steps: list[BranchStep] = []
        self.pending_guard_items: list[Item] = []

    def __len__(self) -> int:
        """Steps on the line."""
        return len(self.steps)

    def add_step(self, step: BranchStep) -> None:
        """Add a step; what was told since the last one goes with it."""
        step.guard_items, self.pending_guard_items = self.pending_guard_items, []
        self.steps.append(step)

    def add_guard_item(self, item: Item) -> None:
        """Add an item of the guard at the end."""
        self.pending_guard_items.append(item)

    def replace_item(self, step: int, item_index: int, item: Item) -> None:
        """Send another item in place of a step's ``place``-th, also where a server keeps the old one."""
        self.steps[step].items[item_index] = item
        for later in self.steps[step + (item_index >= self.steps[step].stored_item_count) :]:
            later.stored_response_id = None

    def truncate(self, from_step: int) -> None:
        """Take back the agent's steps from ``keep`` on; what users said since then stays."""
        stays = [
            BranchStep(items=step.items, is_prompt=True) for step in self.steps[from_step:] if step.is_prompt
        ]
        self.steps[from_step:] = stays
        self.pending_guard_items = []

    def collect_item_refs(self, *, from_step: int = 0) -> list[int | Item]:
        """All items from step ``after`` on, in the order in which they are sent."""
        made: list[int | Item] = []
        for step in self.steps[from_step:]:
            made += [*step.guard_items, *step.items]
        return made + self.pending_guard_items

    def split_at_stored_response(self) -> tuple[str | None, list[int | Item]]:
        """The last response on the line that the server keeps, and the items after it."""
        for count in range(len(self.steps), 0, -1):
            step = self.steps[count - 1]
            if step.stored_response_id is not None:
                return step.stored_response_id, [
                    *step.items[step.stored_item_count :],
                    *self.collect_item_refs(from_step=count),
                ]
        return None, self.collect_item_refs()


def resolve_items(item_refs: Sequence[int | Item], history: Sequence[Item]) -> list[Item]:
    """The items themselves, given the client's history."""
    return [history[one] if isinstance(one, int) else one for one in item_refs]


@dataclass(eq=False, slots=True, kw_only=True)
class Conversation:
    """One guarded conversation between two requests; one request at a time holds it.

    Attributes:
        session: of the run that goes on in it.
        name: id of its first run.
        line: what of the history stands.
        base: steps of the line before those of the run: what other runs left.
        known: items of the client's history that are on the line or were taken back.
        claims: calls of the answer that was given last, by id.
        judged: that answer as a step, where it has calls and the client got it as it came.
        withheld: tools that were taken away in this run.
        runs: runs begun in it: each task of a user is one.
        over: whether its run has ended, so that what comes next begins another.
        tips: keys of the histories that continue it; ``again`` is that of the request answered last.
        history: the client's items, where the client does not resend them.
        root: response that a history unknown to the guard ended with.
        answer: what the client saw last; ``better`` takes its place upstream, if it differs.
        anchor: id of the response that it came with; ``aliases`` are those of refused ones that it saw.
        since: monotonic time in seconds since which it waits for its next request.
        left: names of turns that were taken back (`agentguard.intercept.history_edits`).
        version: counts its requests.
        weight: bytes of its last request, about what it takes to remember it.
        chain: keys under which others find what was said; None where they do not need it.
        chained: items that are under those keys.
    """

    session: Session
    first_run_id: str
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
        """What was answered last has been taken in, or was never received."""
        self.claims, self.answer, self.replacement, self.stored_response_id, self.superseded_response_ids = (
            {},
            [],
            None,
            None,
            (),
        )
        self.answer_step = None


_KeyIndex = dict[bytes, dict[int, Conversation]]
"""Key to the conversations that have it, by `id`, the oldest first: clients may send the same many times."""


class ConversationCache:
    """Conversations that wait for their next request, the longest unused forgotten first; thread-safe.

    Args:
        most: how many are kept.
        most_weight: what they may weigh together; the one that came last is kept, whatever it weighs.
        forgotten: told of each one that is forgotten.
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
        self._by_continuation_key: _KeyIndex = {}
        self._by_retry_key: _KeyIndex = {}

    def __len__(self) -> int:
        """Conversations that wait."""
        with self._lock:
            return len(self._waiting)

    def __contains__(self, key: bytes) -> bool:
        """Whether a conversation waits for a request that has this key."""
        with self._lock:
            return key in self._by_continuation_key

    def pop_latest(self, keys: Sequence[bytes]) -> Conversation | None:
        """Take out the conversation that one of the keys continues, the last key first."""
        with self._lock:
            for key in reversed(keys):
                if key in self._by_continuation_key:
                    return self._remove(next(reversed(self._by_continuation_key[key].values())))
            return None

    def pop_unique(self, key: bytes) -> Conversation | None:
        """Take out the conversation that has a key, if no other one has it."""
        with self._lock:
            known = self._by_continuation_key.get(key, {})
            return self._remove(*known.values()) if len(known) == 1 else None

    def pop_retried(self, key: bytes) -> Conversation | None:
        """Take out the conversation whose last request had this key, though it was answered."""
        with self._lock:
            known = self._by_retry_key.get(key)
            return self._remove(next(reversed(known.values()))) if known else None

    def put(
        self, conversation: Conversation, continuation_keys: Sequence[bytes], retry_key: bytes = b""
    ) -> None:
        """Let a conversation wait for a request that has one of the keys."""
        with self._lock:
            conversation.continuation_keys, conversation.retry_key = (
                tuple(dict.fromkeys(continuation_keys)),
                retry_key,
            )
            conversation.waiting_since = time.monotonic()
            self._waiting[id(conversation)] = conversation
            self._total_bytes += conversation.size_bytes
            for key in conversation.continuation_keys:
                self._by_continuation_key.setdefault(key, {})[id(conversation)] = conversation
            if retry_key:
                self._by_retry_key.setdefault(retry_key, {})[id(conversation)] = conversation
            gone = []
            while self._is_over_limit():
                gone.append(self._remove(next(iter(self._waiting.values()))))
        if self._on_evict is not None:
            for one in gone:
                self._on_evict(one)

    def _is_over_limit(self) -> bool:
        too_heavy = self._max_bytes is not None and self._total_bytes > self._max_bytes
        return len(self._waiting) > self._max_conversations or (too_heavy and len(self._waiting) > 1)

    def pop_idle(self, idle_s: float) -> list[Conversation]:
        """Take out the conversations that wait for longer than some seconds."""
        before, found = time.monotonic() - idle_s, list[Conversation]()
        with self._lock:
            for conversation in list(self._waiting.values()):
                if conversation.waiting_since > before:
                    break
                found.append(self._remove(conversation))
        return found

    def _remove(self, conversation: Conversation) -> Conversation:
        if self._waiting.pop(id(conversation), None) is not None:
            self._total_bytes -= conversation.size_bytes
        for key in conversation.continuation_keys:
            _remove_from_index(self._by_continuation_key, key, conversation)
        if conversation.retry_key:
            _remove_from_index(self._by_retry_key, conversation.retry_key, conversation)
        return conversation


def _remove_from_index(index: _KeyIndex, key: bytes, conversation: Conversation) -> None:
    known = index.get(key)
    if known is not None and known.pop(id(conversation), None) is not None and not known:
        del index[key]


def encode_canonical(value: Any) -> bytes:
    """JSON data as bytes that are equal just where the data is: the order of keys does not count."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # whole numbers beyond 64 bits, half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def extend_key(prefix_key: bytes, items: Sequence[Item], build_item_key: Callable[[Item], bytes]) -> bytes:
    """The key of a history that has further items, given that of its beginning; see `chain`."""
    for item in items:
        own = build_item_key(item)
        prefix_key = hashlib.sha256(prefix_key + own).digest() if own else prefix_key
    return prefix_key


def build_prefix_keys(
    items: Sequence[Item], build_item_key: Callable[[Item], bytes], *, seed: str = ""
) -> list[bytes]:
    """A key for each prefix of the items, the empty one first: each hashes the one before it and an item.

    An item whose own key is empty changes nothing: clients may leave it out when they resend the history.
    """
    begin = hashlib.sha256(seed.encode(errors="surrogatepass")).digest()
    made = [begin]
    for item in items:
        own = build_item_key(item)
        begin = hashlib.sha256(begin + own).digest() if own else begin
        made.append(begin)
    return made
