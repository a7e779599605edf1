"""The conversations of one guard, and the sessions of the runs in them."""

from __future__ import annotations

import logging
import os
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentguard.intercept.api_adapter import ApiAdapter, basis_of, response_key
from agentguard.intercept.conversation import Conversation, Conversations, Item, chain
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.history_edits import Edits
from agentguard.intercept.history_matching import answer_key, laid_anew, last_turn, told_apart
from agentguard.intercept.types import release
from agentguard.recover.strategy import Capabilities
from agentguard.runtime.session import Session
from agentguard.trajectory.formats.sdk import parse_tool_specs
from agentguard.trajectory.model import Source, Step, Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard

CAN = Capabilities(
    reject=True,
    truncate=True,
    disable_tools=True,
    restart=True,
    repair=True,
    sample=True,
    persistent_view=True,
    buffer_stream=True,
)

_LOG = logging.getLogger("agentguard.openai")


class Interceptor:
    """Conversations of one guard behind a transport, or of one tenant behind the proxy.

    Args:
        guard: whose rules hold.
        agent: name of the agent, as the trajectory shows it.
        on_run: called with the session of each run when it begins.
        kept: conversations that are kept between their requests.
        kept_bytes: what their requests may have in all.
        begin: makes the session of a run from the run without its steps; the guard does if absent.
        keep: takes what was done to a conversation, for another process that may go on with it.
    """

    exchange: type[GuardedRequest] = GuardedRequest
    """What a request is taken in by."""

    def __init__(
        self,
        guard: Guard,
        *,
        agent: str = "assistant",
        on_run: Callable[[Session], None] | None = None,
        kept: int = 1024,
        kept_bytes: int | None = None,
        begin: Callable[[Trajectory], Session] | None = None,
        keep: Callable[[Conversation, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._guard, self.agent, self._on_run = guard, agent, on_run
        self._begun = begin or (lambda meta: guard.session(meta, CAN))
        self.waiting = Conversations(kept, most_weight=kept_bytes, forgotten=self._end)
        self.keep = keep
        self.failures: deque[str] = deque(maxlen=100)
        self._named: OrderedDict[str, int] = OrderedDict()
        self._kept = kept
        # A generator of its own: asking the system for each id costs more than all else of a short run.
        self._ids = random.Random(os.urandom(16))  # noqa: S311  ids tell runs apart, and guard nothing

    @property
    def closed(self) -> bool:
        """Whether a request is refused when the guard fails."""
        return self._guard.components.recover.on_guard_error == "fail_closed"

    def failed(self, error: Exception) -> None:
        """Note that the guard failed on a request."""
        self.failures.append(f"{type(error).__name__}: {error}")
        _LOG.warning("the guard failed on a request: %s", type(error).__name__)

    def open(
        self,
        dialect: ApiAdapter,
        body: dict[str, Any],
        *,
        run: str,
        repeat: bool,
        edits: Edits | None = None,
        weight: int = 0,
    ) -> GuardedRequest:
        """Take in what a request tells about its run, and do what is to be done first.

        Args:
            dialect: of the request.
            body: of the request; it is not changed.
            run: name that the client gave to the run; empty if it gave none.
            repeat: the client sends a request again whose answer it did not get.
            edits: what was done to the conversation elsewhere; for one that is new here.
            weight: bytes of the request.
        """
        given, before = dialect.items(body), body.get("previous_response_id")
        keys = chain(given, dialect.key, seed=f"{run}\0{before or ''}")
        found = self.waiting.take(keys if before is None else [response_key(before), keys[-1]])
        if found is None and repeat and (found := self.waiting.repeated(keys[-1])) is not None:
            release(found)
            found.answer = []
            found.chain = None  # what others find ends with an answer that nobody got
        if edits is not None and before is None:
            found = None  # what was known here is of an earlier turn than what is known elsewhere
        elif found is None and before is None:
            found = self._rejoined(dialect, given, run)
        history, known = given, found is not None
        if found is None:
            history = history if edits is None or before is None else [*edits.history, *given]
            found = self._begin(dialect, body, history, run=run)
            if edits is not None and edits.chain:
                found.root, found.chain, found.chained = edits.root, edits.chain, len(edits.history)
        elif before is not None:  # the server has the history, and so has the conversation
            history = [*found.history, *found.answer, *given] if found.answer else found.history
        found.weight = weight
        exchange = self.exchange(self, dialect, found, body, history=history, again=keys[-1], seed=run)
        exchange.begin(None if known else edits)
        return exchange

    def foreign(self, dialect: ApiAdapter, body: Mapping[str, Any], *, run: str) -> list[bytes]:
        """The keys that a conversation of another process may have, the likeliest first.

        None where it goes on with one of this process from its latest turn, or has just begun.
        """
        given, before = dialect.items(body), body.get("previous_response_id")
        if before is not None:
            named = response_key(before) if isinstance(before, str) else b""
            return [] if not named or named in self.waiting else [named]
        if not any(map(dialect.result, given)):
            return []
        keys = chain(given, dialect.key, seed=f"{run}\0")
        turn = last_turn(dialect, given)
        last = turn or (len(given), len(given))
        answered = next((place for place in range(*last) if dialect.result(given[place])), len(given))
        # One that waits here may be of an earlier turn: what came since then was asked elsewhere.
        here = max((place for place, key in enumerate(keys) if key in self.waiting), default=0)
        likely = keys[answered:here:-1]
        if turn is None or not likely or not (run or told_apart(dialect, given[slice(*turn)])):
            return likely
        answer = answer_key(dialect, given[slice(*turn)], run)  # of a client that has dropped older turns
        return [] if answer in self.waiting else [likely[0], answer, *likely[1:]]

    def knows(self, run: str) -> bool:
        """Whether a client gave this name to a run."""
        return run in self._named

    def continues(self, body: Mapping[str, Any]) -> bool:
        """Whether a request names a response that a run waits to go on from."""
        before = body.get("previous_response_id")
        return isinstance(before, str) and response_key(before) in self.waiting

    def session(
        self, dialect: ApiAdapter, body: Mapping[str, Any], history: Sequence[Step], name: str
    ) -> Session:
        """Begin the session of a run."""
        asked = [step.content for step in history if step.source is Source.USER]
        system = [step.content for step in history[:1] if step.source is Source.SYSTEM]
        system += filter(None, [dialect.system(body)])
        meta = Trajectory(
            id=name,
            format="event_log",
            task=asked[-1] if asked else "",
            steps=(),
            tools=parse_tool_specs(dialect.tools(body), "tools"),
            system_prompts={self.agent: "\n\n".join(system)} if system else {},
        )
        session = self._begun(meta)
        if self._on_run is not None:
            self._on_run(session)
        return session

    def end_idle(self, idle_s: float) -> int:
        """End the runs that waited for their next request for longer than ``idle_s`` seconds; how many.

        Nobody is asked what such an end is worth: the run said nothing that it wanted to end with.
        """
        ended = 0
        for conversation in self.waiting.idle(idle_s):
            ended += not conversation.session.has_ended
            self._end(conversation)
        return ended

    def _end(self, conversation: Conversation) -> None:
        """End the run of a conversation that is not gone on with."""
        session = conversation.session
        if not session.has_ended:
            session.config = replace(session.config, acceptance_function=None, safety_assessor=None)
            session.end(is_refusable=False)

    def _rejoined(self, dialect: ApiAdapter, given: Sequence[Item], run: str) -> Conversation | None:
        """The one conversation whose last answer the history ends with; laid anew along that history."""
        last = last_turn(dialect, given)
        if last is None:
            return None
        found = self.waiting.only(answer_key(dialect, given[last[0] : last[1]], run))
        if found is not None:
            laid_anew(found, dialect, given, self.agent)
        return found

    def _begin(
        self, dialect: ApiAdapter, body: Mapping[str, Any], history: Sequence[Item], *, run: str
    ) -> Conversation:
        name = self._name_of(run)
        session = self.session(dialect, body, basis_of(dialect, history, self.agent), name)
        return Conversation(session=session, name=name, root=body.get("previous_response_id"))

    def _name_of(self, run: str) -> str:
        """The name a client gave, numbered where it begins another conversation under it; else our own."""
        if not run:
            return f"run-{self._ids.getrandbits(64):016x}"
        number = self._named.pop(run, 0) + 1
        self._named[run] = number
        while len(self._named) > self._kept:
            self._named.popitem(last=False)
        return run if number == 1 else f"{run}.{number}"
