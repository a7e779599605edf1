"""Quorum reads: ask several replicas and return the majority's answer, against wrong but well-formed answers.

Replication with voting (Lamport, Shostak and Pease, 1982; a majority of n answers masks the others). It costs
n times the work. So it applies only to marked requests, and to a limited number at once. Answers are compared
by their canonical content (`canonicalize_response`). Models must therefore answer consistently: low
temperature, closed questions, tool calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Self, TypeVar

from agentguard.backends.base import BackendRequest, Headers, Response, StreamingResponse
from agentguard.backends.config import QuorumOptions
from agentguard.errors import BackendError
from agentguard.model_api.canonicalization import canonicalize_response, canonicalize_stream
from agentguard.resilience import Deadline
from agentguard.resilience.stream_timeout import CLOSE_TIMEOUT_S, close_response

Notes = tuple[tuple[str, str], ...]
SendSingle = Callable[[BackendRequest, Deadline], Awaitable[Response | StreamingResponse]]

MAX_RESPONSE_BYTES = 16 << 20
"""Maximum size of a streamed answer that is buffered for a vote."""


class BufferedStream:
    """Streamed answer that was received completely before it is forwarded; see `StreamingResponse`."""

    def __init__(self, head: StreamingResponse, chunks: list[bytes]) -> None:
        self.status: int = head.status
        self.headers: Headers = head.headers
        self.replica: str = head.replica
        self.notes: Notes = head.notes
        self.chunks = chunks
        self._next = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._next >= len(self.chunks):
            raise StopAsyncIteration
        self._next += 1
        return self.chunks[self._next - 1]

    async def aclose(self) -> None:
        """Discard the remaining chunks."""
        self._next = len(self.chunks)


Ballot = Response | BufferedStream


class QuorumReader:
    """Strategy that sends requests to several replicas and counts their votes.

    Args:
        options: options of voting; None disables it, so each request gets one answer.
        send_single: sends a request to one replica, if possible an untried one.

    Attributes:
        running_count: number of running votes.
    """

    def __init__(self, options: QuorumOptions | None, send_single: SendSingle) -> None:
        self.options, self._send_single = options, send_single
        self.running_count = 0

    async def send(
        self, request: BackendRequest, deadline: Deadline, replicas: int
    ) -> Response | StreamingResponse:
        """Return the majority's answer; without a majority, the first answer with a note.

        A streamed answer is forwarded after the vote, in its original chunks.

        Raises:
            ResilienceError: no replica answered; the error of the first one.
        """
        options = self.options
        single = replace(request, quorum_size=1)
        count = 1 if options is None else min(request.quorum_size, options.max_replicas, replicas)
        if options is None or count < 2 or self.running_count >= options.max_concurrent:
            reason = "off" if options is None else "one replica" if count < 2 else "busy"
            return add_notes(await self._send_single(single, deadline), (("not_voted", reason),))
        self.running_count += 1
        try:
            return await self._run_vote(single, deadline, count)
        finally:
            self.running_count -= 1

    async def _run_vote(self, request: BackendRequest, deadline: Deadline, count: int) -> Ballot:
        # The tasks share the list of tried replicas, so that each asks another replica.
        tasks = [asyncio.create_task(self._collect_ballot(request, deadline)) for _ in range(count)]
        pending_tasks = set(tasks)
        ballots: list[Ballot] = []
        tally: Counter[bytes] = Counter()
        try:
            while pending_tasks:
                finished_tasks, pending_tasks = await asyncio.wait(
                    pending_tasks, return_when=asyncio.FIRST_COMPLETED
                )
                for task in (
                    finished_task
                    for finished_task in tasks
                    if finished_task in finished_tasks and finished_task.exception() is None
                ):
                    ballot = task.result()
                    ballots.append(ballot)
                    canonical_answer = _canonicalize(request, ballot)
                    tally[canonical_answer] += 1
                    if tally[canonical_answer] * 2 > count:
                        return add_notes(ballot, (("voted", f"{tally[canonical_answer]}/{count}"),))
        finally:
            await _cancel_tasks(pending_tasks)
        if not ballots:
            raise tasks[0].exception() or BackendError("no replica answered")
        max_votes = max(tally.values())
        return add_notes(ballots[0], (("voted", f"{max_votes}/{count}"), ("no_majority", "1")))

    async def _collect_ballot(self, request: BackendRequest, deadline: Deadline) -> Ballot:
        """Return one replica's complete answer. Raises the errors of ``send_single``."""
        answer = await self._send_single(request, deadline)
        if isinstance(answer, Response):
            return answer
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in answer:
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_RESPONSE_BYTES:
                    raise BackendError("the answer is too large for a vote", stage="sent")
        finally:
            await close_response(answer)
        return BufferedStream(answer, chunks)


ResponseT = TypeVar("ResponseT", bound=Response | StreamingResponse)


def add_notes(response: ResponseT, notes: Notes) -> ResponseT:
    """Return the response with additional notes."""
    if isinstance(response, Response):
        return replace(response, notes=(*response.notes, *notes))
    response.notes = (*response.notes, *notes)
    return response


def _canonicalize(request: BackendRequest, ballot: Ballot) -> bytes:
    api = request.api.name if request.api is not None else ""
    if isinstance(ballot, Response):
        return canonicalize_response(api, ballot.body)
    return canonicalize_stream(api, b"".join(ballot.chunks))


async def _cancel_tasks(tasks: set[asyncio.Task[Ballot]]) -> None:
    """Cancel the remaining tasks; wait for their end for at most `CLOSE_TIMEOUT_S`."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
