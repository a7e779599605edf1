"""Interceptor: assignment of requests to conversations, and start of the sessions of their runs."""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from agentguard._bounded_map import BoundedMap
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import (
    Conversation,
    ConversationCache,
    Item,
    build_prefix_keys,
    build_response_key,
    release_claims,
)
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.history_edits import HistoryEdits
from agentguard.intercept.history_sync import (
    HistoryRewriteWarning,
    build_answer_key,
    find_last_turn,
    has_random_call_ids,
    rebuild_branch,
    select_context_steps,
)
from agentguard.recover.budget import BudgetAccount
from agentguard.recover.capabilities import Capabilities
from agentguard.runtime.session import Session
from agentguard.trajectory.formats.sdk import parse_tool_specs
from agentguard.trajectory.model import Source, Step, ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

CAPABILITIES = Capabilities(
    reject=True,
    truncate=True,
    disable_tools=True,
    restart=True,
    repair=True,
    sample=True,
)

_LOGGER = logging.getLogger("agentguard.openai")
_MAX_CACHED_BYTES: Final = 65_536
"""Size of a request's tools up to which their specifications are kept for other runs."""


@dataclass(slots=True, kw_only=True)
class _NamedRun:
    """Runs with the same name.

    Attributes:
        count: number of runs with the name.
        account: budget account of the run that began last.
    """

    count: int = 0
    account: BudgetAccount | None = None


class Interceptor:
    """Conversations of one guard behind a transport, or of one tenant behind the proxy.

    Args:
        guard: the guard whose rules apply.
        agent: name of the agent in the trajectory.
        on_run: called with the session of each run when the run begins.
        max_conversations: maximum number of conversations in memory.
        max_conversation_bytes: maximum total size of their last requests.
        run_name_suffix: suffix of the IDs of named runs; it must differ between processes that write to one
            store, because a run replaces the stored run with its ID.
        create_session: creates the session of a run from a trajectory without steps; by default the guard's.
        save_edits: stores the edits of a conversation for another process that may continue it.
    """

    request_class: type[GuardedRequest] = GuardedRequest
    """Class of the requests that `open_request` returns."""

    def __init__(
        self,
        guard: Guard,
        *,
        agent: str = "assistant",
        on_run: Callable[[Session], None] | None = None,
        max_conversations: int = 1024,
        max_conversation_bytes: int | None = None,
        run_name_suffix: str = "",
        create_session: Callable[[Trajectory], Session] | None = None,
        save_edits: Callable[[Conversation, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._guard, self.agent, self._on_run = guard, agent, on_run
        self._create_session = create_session or (lambda meta: guard.session(meta, CAPABILITIES))
        self.conversations = ConversationCache(
            max_conversations, max_bytes=max_conversation_bytes, on_evict=self._end_run
        )
        self.save_edits = save_edits
        self.failures: deque[str] = deque(maxlen=100)
        self._run_name_suffix = run_name_suffix
        self._named_runs = BoundedMap[str, _NamedRun](max_conversations)
        self._rewrite_warning = HistoryRewriteWarning(max_conversations)
        # The generator is seeded once: a system call for each ID costs more than the rest of a short run.
        self._id_generator = random.Random(os.urandom(16))  # noqa: S311  the IDs are not secrets

    @property
    def fails_closed(self) -> bool:
        """Return whether the interceptor rejects a request if the guard fails."""
        return self._guard.components.recover.on_guard_error == "fail_closed"

    def record_failure(self, error: Exception) -> None:
        """Record that the guard failed on a request."""
        self.failures.append(f"{type(error).__name__}: {error}")
        _LOGGER.warning("the guard failed on a request: %s", type(error).__name__)

    def open_request(
        self,
        adapter: ApiAdapter,
        body: dict[str, Any],
        *,
        run_name: str,
        is_retry: bool,
        edits: HistoryEdits | None = None,
        size_bytes: int = 0,
        keys: Sequence[bytes] = (),
    ) -> GuardedRequest:
        """Assign a request to a conversation, commit its new turns and apply pending recoveries.

        Args:
            adapter: adapter of the API.
            body: request body; it is not changed.
            run_name: client's name of the run; empty without a name.
            is_retry: whether the client repeats a request because it did not get the answer.
            edits: edits from another process; used if the conversation is new in this process.
            size_bytes: size of the request.
            keys: result of `build_history_keys`, if the caller has it.
        """
        items, previous_id = adapter.extract_items(body), body.get("previous_response_id")
        keys = keys or self.build_history_keys(adapter, body, run_name=run_name)
        conversation = self.conversations.pop_latest(
            keys if previous_id is None else [build_response_key(previous_id), keys[-1]]
        )
        if (
            conversation is None
            and is_retry
            and (conversation := self.conversations.pop_retried(keys[-1])) is not None
        ):
            release_claims(conversation)
            conversation.answer = []
            conversation.shared_history_keys = (
                None  # the shared history ends with an answer that no client received
            )
        if edits is not None and previous_id is None:
            conversation = None  # this process knows an earlier turn than the other process
        elif conversation is None and previous_id is None:
            conversation = self._match_last_turn(adapter, items, run_name)
        history, is_known = items, conversation is not None
        if conversation is None:
            if edits is None and previous_id is None:
                self._rewrite_warning.check(adapter, items, keys)
            history = history if edits is None or previous_id is None else [*edits.history, *items]
            conversation = self._start_conversation(adapter, body, history, run_name=run_name)
            if edits is not None and edits.shared_history_keys:
                (
                    conversation.root_response_id,
                    conversation.shared_history_keys,
                    conversation.shared_item_count,
                ) = (
                    edits.root_response_id,
                    edits.shared_history_keys,
                    len(edits.history),
                )
        elif previous_id is not None:  # the server stores the history, and the conversation has a copy
            history = (
                [*conversation.history, *conversation.answer, *items]
                if conversation.answer
                else conversation.history
            )
        is_unjoined = (
            not is_known and edits is None and (previous_id is not None or any(map(adapter.is_result, items)))
        )
        conversation.size_bytes = size_bytes
        exchange = self.request_class(
            self, adapter, conversation, body, history=history, retry_key=keys[-1], key_seed=run_name
        )
        exchange.is_unjoined = is_unjoined
        exchange.prepare(None if is_known else edits)
        return exchange

    def build_history_keys(
        self,
        adapter: ApiAdapter,
        body: Mapping[str, Any],
        *,
        run_name: str,
        known_keys: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Return a key for each prefix of the request's history.

        Args:
            adapter: adapter of the API.
            body: request body.
            run_name: client's name of the run.
            known_keys: keys of an earlier request whose history is a prefix of this history.
        """
        seed = f"{run_name}\0{body.get('previous_response_id') or ''}"
        return build_prefix_keys(
            adapter.extract_items(body), adapter.build_item_key, seed=seed, known_keys=known_keys
        )

    def list_foreign_keys(
        self, adapter: ApiAdapter, body: Mapping[str, Any], *, run_name: str
    ) -> list[bytes]:
        """Return the keys that a conversation of another process may have, the most likely first.

        The list is empty if the conversation has just begun or if this process holds its latest turn.
        """
        items, previous_id = adapter.extract_items(body), body.get("previous_response_id")
        if previous_id is not None:
            response_key = build_response_key(previous_id) if isinstance(previous_id, str) else b""
            return [] if not response_key or response_key in self.conversations else [response_key]
        if not any(map(adapter.is_result, items)):
            return []
        keys = build_prefix_keys(items, adapter.build_item_key, seed=f"{run_name}\0")
        turn = find_last_turn(adapter, items)
        turn_range = turn or (len(items), len(items))
        first_result = next(
            (place for place in range(*turn_range) if adapter.is_result(items[place])), len(items)
        )
        # A conversation may wait here at an earlier turn if another process has handled the later ones.
        known_length = max((place for place, key in enumerate(keys) if key in self.conversations), default=0)
        likely_keys = keys[first_result:known_length:-1]
        if (
            turn is None
            or not likely_keys
            or not (run_name or has_random_call_ids(adapter, items[slice(*turn)]))
        ):
            return likely_keys
        answer = build_answer_key(
            adapter, items[slice(*turn)], run_name
        )  # matches clients that have dropped older turns
        return [] if answer in self.conversations else [likely_keys[0], answer, *likely_keys[1:]]

    def has_run(self, run_name: str) -> bool:
        """Return whether a run has this name."""
        return run_name in self._named_runs

    def continues_conversation(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request names a response that a waiting conversation can continue."""
        before = body.get("previous_response_id")
        return isinstance(before, str) and build_response_key(before) in self.conversations

    def start_session(
        self, adapter: ApiAdapter, body: Mapping[str, Any], steps: Sequence[Step], run_id: str
    ) -> Session:
        """Start the session of a run."""
        user_texts = [step.content for step in steps if step.source is Source.USER]
        system = [step.content for step in steps[:1] if step.source is Source.SYSTEM]
        system += filter(None, [adapter.extract_system_prompt(body)])
        meta = Trajectory(
            id=run_id,
            format="event_log",
            task=user_texts[-1] if user_texts else "",
            steps=(),
            tools=parse_tools(adapter.extract_tools(body)),
            system_prompts={self.agent: "\n\n".join(system)} if system else {},
        )
        session = self._create_session(meta)
        if self._on_run is not None:
            self._on_run(session)
        return session

    def end_idle(self, idle_s: float) -> int:
        """End the runs that have waited longer than ``idle_s`` seconds; return the number of ended runs.

        These runs skip the acceptance test and the safety assessor, because they have no final output.
        """
        ended = 0
        for conversation in self.conversations.pop_idle(idle_s):
            ended += not conversation.session.has_ended
            self._end_run(conversation)
        return ended

    def _end_run(self, conversation: Conversation) -> None:
        """End the run of a conversation that the cache has removed."""
        session = conversation.session
        if not session.has_ended:
            session.config = replace(session.config, acceptance_function=None, safety_assessor=None)
            session.end(is_refusable=False)

    def _match_last_turn(
        self, adapter: ApiAdapter, items: Sequence[Item], run_name: str
    ) -> Conversation | None:
        """Resume the conversation whose last answer ends the history; return None unless it is unique."""
        last_turn = find_last_turn(adapter, items)
        if last_turn is None:
            return None
        conversation = self.conversations.pop_unique(
            build_answer_key(adapter, items[last_turn[0] : last_turn[1]], run_name)
        )
        if conversation is not None:
            self._resume_conversation(conversation, adapter, items, last_turn[0])
        return conversation

    def _resume_conversation(
        self, conversation: Conversation, adapter: ApiAdapter, items: Sequence[Item], last_turn: int
    ) -> None:
        """Prepare a conversation for a history whose beginning is unknown."""
        del last_turn
        rebuild_branch(conversation, adapter, items, self.agent)

    def _start_conversation(
        self, adapter: ApiAdapter, body: Mapping[str, Any], history: Sequence[Item], *, run_name: str
    ) -> Conversation:
        name = self._next_run_id(run_name)
        session = self.start_session(adapter, body, select_context_steps(adapter, history, self.agent), name)
        if run_name:
            self._assign_account(session, run_name, is_continued=any(map(adapter.is_result, history)))
        return Conversation(
            session=session,
            first_run_id=name,
            run_name=run_name,
            root_response_id=body.get("previous_response_id"),
        )

    def _assign_account(self, session: Session, run_name: str, *, is_continued: bool) -> None:
        """Continue the budget of a named run in a new session.

        A client that rewrites its history begins a session with each request. A separate budget for each
        session would not bound a loop of that client.
        """
        named = self._named_runs[run_name]
        if is_continued and named.account is not None:
            session.account = named.account
        named.account = session.account

    def begin_next_run(self, conversation: Conversation) -> str:
        """Count another run of a conversation and return the ID of the run."""
        conversation.run_count, conversation.is_finished = conversation.run_count + 1, False
        if conversation.run_name:
            # Another conversation may have the same name, so the count of the conversation is not enough.
            return self._next_run_id(conversation.run_name)
        return f"{conversation.first_run_id}.{conversation.run_count}"

    def _next_run_id(self, run_name: str) -> str:
        """Return the client's name, with a number if it is already used, or a random ID without a name."""
        if not run_name:
            return f"run-{self._id_generator.getrandbits(64):016x}"
        named = self._named_runs[run_name] = self._named_runs.get(run_name) or _NamedRun()
        named.count += 1
        run_id = f"{run_name}{self._run_name_suffix}"
        return run_id if named.count == 1 else f"{run_id}.{named.count}"


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
