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
    given: bool = False
    told: list[Item] = field(default_factory=list)
    anchor: str | None = None
    kept: int = 0


class ConversationBranch:
    """The live line of a conversation, one `Held` a step."""

    def __init__(self) -> None:
        self.steps: list[BranchStep] = []
        self.told: list[Item] = []

    def __len__(self) -> int:
        """Steps on the line."""
        return len(self.steps)

    def add(self, step: BranchStep) -> None:
        """Add a step; what was told since the last one goes with it."""
        step.told, self.told = self.told, []
        self.steps.append(step)

    def tell(self, item: Item) -> None:
        """Add an item of the guard at the end."""
        self.told.append(item)

    def repair(self, step: int, place: int, item: Item) -> None:
        """Send another item in place of a step's ``place``-th, also where a server keeps the old one."""
        self.steps[step].items[place] = item
        for later in self.steps[step + (place >= self.steps[step].kept) :]:
            later.anchor = None

    def cut(self, keep: int) -> None:
        """Take back the agent's steps from ``keep`` on; what users said since then stays."""
        stays = [BranchStep(items=step.items, given=True) for step in self.steps[keep:] if step.given]
        self.steps[keep:] = stays
        self.told = []

    def places(self, *, after: int = 0) -> list[int | Item]:
        """All items from step ``after`` on, in the order in which they are sent."""
        made: list[int | Item] = []
        for step in self.steps[after:]:
            made += [*step.told, *step.items]
        return made + self.told

    def since_anchor(self) -> tuple[str | None, list[int | Item]]:
        """The last response on the line that the server keeps, and the items after it."""
        for count in range(len(self.steps), 0, -1):
            step = self.steps[count - 1]
            if step.anchor is not None:
                return step.anchor, [*step.items[step.kept :], *self.places(after=count)]
        return None, self.places()


def view(places: Sequence[int | Item], history: Sequence[Item]) -> list[Item]:
    """The items themselves, given the client's history."""
    return [history[one] if isinstance(one, int) else one for one in places]


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
    name: str
    line: ConversationBranch = field(default_factory=ConversationBranch)
    base: int = 0
    known: int = 0
    claims: dict[str, Any] = field(default_factory=dict)
    judged: Step | None = None
    withheld: set[str] = field(default_factory=set)
    runs: int = 1
    over: bool = False
    continuation_keys: tuple[bytes, ...] = ()
    retry_key: bytes = b""
    history: list[Item] = field(default_factory=list)
    root: str | None = None
    anchor: str | None = None
    answer: list[Item] = field(default_factory=list)
    replacement: list[Item] | None = None
    superseded_response_ids: tuple[str, ...] = ()
    since: float = 0.0
    left: set[str] = field(default_factory=set)
    version: int = 0
    weight: int = 0
    chain: tuple[str, ...] | None = ()
    chained: int = 0

    def forget_answer(self) -> None:
        """What was answered last has been taken in, or was never received."""
        self.claims, self.answer, self.replacement, self.anchor, self.superseded_response_ids = (
            {},
            [],
            None,
            None,
            (),
        )
        self.judged = None


_Index = dict[bytes, dict[int, Conversation]]
"""Key to the conversations that have it, by `id`, the oldest first: clients may send the same many times."""


class Conversations:
    """Conversations that wait for their next request, the longest unused forgotten first; thread-safe.

    Args:
        most: how many are kept.
        most_weight: what they may weigh together; the one that came last is kept, whatever it weighs.
        forgotten: told of each one that is forgotten.
    """

    def __init__(
        self,
        most: int,
        *,
        most_weight: int | None = None,
        forgotten: Callable[[Conversation], None] | None = None,
    ) -> None:
        self._most, self._most_weight, self._forgotten = most, most_weight, forgotten
        self._weight = 0
        self._lock = threading.Lock()
        self._waiting: OrderedDict[int, Conversation] = OrderedDict()
        self._tips: _Index = {}
        self._again: _Index = {}

    def __len__(self) -> int:
        """Conversations that wait."""
        with self._lock:
            return len(self._waiting)

    def __contains__(self, key: bytes) -> bool:
        """Whether a conversation waits for a request that has this key."""
        with self._lock:
            return key in self._tips

    def take(self, keys: Sequence[bytes]) -> Conversation | None:
        """Take out the conversation that one of the keys continues, the last key first."""
        with self._lock:
            for key in reversed(keys):
                if key in self._tips:
                    return self._forget(next(reversed(self._tips[key].values())))
            return None

    def only(self, key: bytes) -> Conversation | None:
        """Take out the conversation that has a key, if no other one has it."""
        with self._lock:
            known = self._tips.get(key, {})
            return self._forget(*known.values()) if len(known) == 1 else None

    def repeated(self, key: bytes) -> Conversation | None:
        """Take out the conversation whose last request had this key, though it was answered."""
        with self._lock:
            known = self._again.get(key)
            return self._forget(next(reversed(known.values()))) if known else None

    def put(self, conversation: Conversation, tips: Sequence[bytes], again: bytes = b"") -> None:
        """Let a conversation wait for a request that has one of the keys."""
        with self._lock:
            conversation.continuation_keys, conversation.retry_key = tuple(dict.fromkeys(tips)), again
            conversation.since = time.monotonic()
            self._waiting[id(conversation)] = conversation
            self._weight += conversation.weight
            for key in conversation.continuation_keys:
                self._tips.setdefault(key, {})[id(conversation)] = conversation
            if again:
                self._again.setdefault(again, {})[id(conversation)] = conversation
            gone = []
            while self._too_much():
                gone.append(self._forget(next(iter(self._waiting.values()))))
        if self._forgotten is not None:
            for one in gone:
                self._forgotten(one)

    def _too_much(self) -> bool:
        too_heavy = self._most_weight is not None and self._weight > self._most_weight
        return len(self._waiting) > self._most or (too_heavy and len(self._waiting) > 1)

    def idle(self, seconds: float) -> list[Conversation]:
        """Take out the conversations that wait for longer than some seconds."""
        before, found = time.monotonic() - seconds, list[Conversation]()
        with self._lock:
            for conversation in list(self._waiting.values()):
                if conversation.since > before:
                    break
                found.append(self._forget(conversation))
        return found

    def _forget(self, conversation: Conversation) -> Conversation:
        if self._waiting.pop(id(conversation), None) is not None:
            self._weight -= conversation.weight
        for key in conversation.continuation_keys:
            _drop(self._tips, key, conversation)
        if conversation.retry_key:
            _drop(self._again, conversation.retry_key, conversation)
        return conversation


def _drop(index: _Index, key: bytes, conversation: Conversation) -> None:
    known = index.get(key)
    if known is not None and known.pop(id(conversation), None) is not None and not known:
        del index[key]


def canonical_key(value: Any) -> bytes:
    """JSON data as bytes that are equal just where the data is: the order of keys does not count."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # whole numbers beyond 64 bits, half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def extended(begin: bytes, items: Sequence[Item], key: Callable[[Item], bytes]) -> bytes:
    """The key of a history that has further items, given that of its beginning; see `chain`."""
    for item in items:
        own = key(item)
        begin = hashlib.sha256(begin + own).digest() if own else begin
    return begin


def chain(items: Sequence[Item], key: Callable[[Item], bytes], *, seed: str = "") -> list[bytes]:
    """A key for each prefix of the items, the empty one first: each hashes the one before it and an item.

    An item whose own key is empty changes nothing: clients may leave it out when they resend the history.
    """
    begin = hashlib.sha256(seed.encode(errors="surrogatepass")).digest()
    made = [begin]
    for item in items:
        own = key(item)
        begin = hashlib.sha256(begin + own).digest() if own else begin
        made.append(begin)
    return made
