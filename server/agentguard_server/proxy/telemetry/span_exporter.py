"""A span for each request, sent to a collector in batches by a thread of its own.

On the way of a request a few fields are put into a bounded queue; what does not fit is lost and counted, as
is what the collector does not take.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from agentguard.backends.base import Headers
from agentguard.errors import AgentGuardError
from agentguard.otlp.exporter import ExportTarget, Sender
from agentguard.otlp.model import OtlpSpan
from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest
from agentguard_server.proxy.telemetry.counters import Figure
from agentguard_server.proxy.telemetry.guard_headers import GuardFindings
from agentguard_server.proxy.telemetry.options import SpansOptions
from agentguard_server.proxy.telemetry.span_mapping import ENDS, to_span
from agentguard_server.proxy.telemetry.trace_context import propagation_headers

_LOG = logging.getLogger(__name__)
_BATCH: Final = 512
_MOST_BYTES: Final = 32 * 1024 * 1024
_TOLD_S: Final = 60.0


class SpanExporter:
    """A `Recorder`; the thread begins with the first request.

    Args:
        options: what is in the spans, and how many may wait.
        target: where they go; what the options say, if absent.

    Attributes:
        sent: spans that the collector took.
        lost: spans that it did not, or that there was no room for.

    Raises:
        ConfigError: there is no endpoint, or its headers are not in the environment.
        MissingExtra: the extra ``otel`` is not installed.
    """

    def __init__(self, options: SpansOptions, *, target: ExportTarget | None = None) -> None:
        found = target or options.target()
        if found is None:
            raise ValueError("spans need an endpoint")
        self.options, self._target = options, found
        # Made here, as importing its client would hold every request up while the thread does it.
        self._sender = Sender(found)
        self._waiting: deque[tuple[int, CompletedRequest]] = deque()
        self._bytes = 0
        self._wake = threading.Event()
        self._closing = False
        self._findings = GuardFindings()
        self._thread: threading.Thread | None = None
        self._told = float("-inf")
        self.sent = self.lost = 0

    def upstream(self, asked: ProxyRequest) -> Headers:
        """The headers of the request's trace, for who is asked: our span is the parent."""
        return propagation_headers(asked, self.options.sample)

    def record(self, recorded: CompletedRequest) -> None:
        """Queue what a span is made of."""
        if not recorded.asked.api:
            return
        kept = self._kept(recorded)
        size = len(kept.asked.body) + len(kept.answer)
        if len(self._waiting) >= self.options.queue or self._bytes + size > _MOST_BYTES or self._closing:
            self.lost += 1
            return
        self._waiting.append((time.time_ns(), kept))
        self._bytes += size
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agentguard-spans", daemon=True)
            self._thread.start()

    def figures(self) -> Iterable[Figure]:
        """What became of the spans."""
        return (("spans_sent", (), self.sent), ("spans_lost", (), self.lost))

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, as far as that goes in the time; the rest is lost."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        left = len(self._waiting)
        self.lost += left
        self._waiting.clear()

    def _kept(self, recorded: CompletedRequest) -> CompletedRequest:
        """What of a request is needed later: no long body unless it is shown, of a long answer both ends."""
        asked, answer, shown = recorded.asked, recorded.answer, self.options.contents
        most = 4 * self.options.most_chars if shown else 2 * ENDS
        if len(asked.body) <= most and len(answer) <= most:
            return recorded  # to make another one takes longer than all else here
        if len(answer) > most:
            answer = answer[:most] if shown else answer[:ENDS] + answer[-ENDS:]
        return replace(recorded, asked=replace(asked, body=asked.body[:most]), sent=None, answer=answer)

    def _run(self) -> None:
        asyncio.run(self._sending())

    async def _sending(self) -> None:
        async with self._sender:
            while not self._closing or self._waiting:
                if not self._closing and len(self._waiting) < _BATCH:
                    # The thread has nothing else to do: the loop may stand still.
                    self._wake.wait(self.options.every_s)
                if self._waiting:
                    await self._send()

    async def _send(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        # Made before: a call between reading and writing a number would undo what `record` adds meanwhile.
        size, count = sum(len(one.asked.body) + len(one.answer) for _, one in taken), len(taken)
        self._bytes -= size
        try:
            spans = [span for at, one in taken if (span := self._made(at, one)) is not None]
            found = await self._sender.send(spans) if spans else None
        except AgentGuardError as error:
            self.lost += count
            self._tell(f"{error.code}: {error}")
        except Exception as error:  # a span that cannot be made must not end the thread
            self.lost += count
            self._tell(type(error).__name__)
        else:
            rejected = found.rejected if found else 0
            self.sent += len(spans) - rejected
            self.lost += rejected

    def _made(self, at_ns: int, recorded: CompletedRequest) -> OtlpSpan | None:
        findings = self._findings.new(recorded.asked.tenant, recorded.did)
        return to_span(recorded, at_ns, self.options, findings=findings)

    def _tell(self, reason: str) -> None:
        """Once a minute is enough for a collector that is gone."""
        if time.monotonic() - self._told > _TOLD_S:
            self._told = time.monotonic()
            _LOG.warning("spans were lost: %s", reason)
