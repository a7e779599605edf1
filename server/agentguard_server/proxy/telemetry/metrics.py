"""Counts requests and events; on the way of a request it only adds to plain numbers.

Incrementing a labelled counter of prometheus-client takes several microseconds, so that its counters are not
used: what is counted here is shown by a collector of our own when somebody asks (`exposed`).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from agentguard.resilience.events import EventKind, ResilienceEvent
from agentguard_server.proxy.hooks import CompletedRequest
from agentguard_server.proxy.telemetry.counters import Figure, Histogram, Labels, MetricSet
from agentguard_server.proxy.telemetry.guard_headers import GuardFindings, recoveries_of
from agentguard_server.proxy.telemetry.metric_definitions import OTHER
from agentguard_server.proxy.telemetry.options import MetricsOptions
from agentguard_server.proxy.telemetry.token_usage import tokens_of

_LOG = logging.getLogger(__name__)
_LONGEST: Final = 120
_BREAKER: Final = {"closed": 0.0, "half_open": 1.0, "half-open": 1.0, "open": 2.0}
_COUNTED: Final = frozenset({"chat", "completions", "embeddings", "responses", "messages"})

Source = Callable[[], Iterable[Figure]]
"""Gives figures that others keep, when they are asked for: whole values, not what was added since."""

_Key = tuple[str, str, str, int, str]


class _Series:
    """The counts of one combination of labels, where a request finds them at once."""

    __slots__ = ("count", "first", "given", "made", "seconds")

    def __init__(self, seconds: Histogram, first: Histogram) -> None:
        self.count = 0
        self.seconds, self.first = seconds, first
        self.given = self.made = 0


class Metrics:
    """A `Recorder` and an observer of the pipeline's events.

    Model names come from clients: only what a replica has answered gets a label, and only so many.

    Args:
        options: how finely is counted.
    """

    def __init__(self, options: MetricsOptions | None = None) -> None:
        self.options = options or MetricsOptions()
        self._tally = MetricSet(self.options.buckets)
        self._bounds = self._tally.bounds
        self._series: dict[_Key, _Series] = {}
        self._labels: dict[tuple[str, str, str, str, str], _Series] = {}
        self._models: set[str] = set()
        self._sources: list[Source] = []
        self._findings = GuardFindings()

    def record(self, recorded: CompletedRequest) -> None:
        """Count a request that is over."""
        asked = recorded.asked
        key = (asked.api, asked.model, asked.tenant, recorded.status, recorded.replica)
        series = self._series.get(key) or self._found(key)
        series.count += 1
        held = series.seconds
        held.counts[bisect_left(self._bounds, recorded.seconds)] += 1
        held.sum += recorded.seconds
        if recorded.first_s is not None:
            held = series.first
            held.counts[bisect_left(self._bounds, recorded.first_s)] += 1
            held.sum += recorded.first_s
        if self.options.tokens and recorded.status < 300 and asked.api in _COUNTED:
            given, made = tokens_of(recorded.answer)
            series.given += given
            series.made += made
        if recorded.error or recorded.notes or recorded.guarded or not recorded.complete:
            self._more(recorded)

    def __call__(self, event: ResilienceEvent) -> None:
        """Count an event of the pipeline."""
        add = self._tally.add
        add("resilience_events", (event.kind.value, event.source, event.target))
        match event.kind:
            case EventKind.RETRY:
                add("retries", (event.reason[:_LONGEST],))
            case EventKind.SHED:
                add("shed_requests", (event.reason[:_LONGEST],))
            case EventKind.BREAKER if event.reason in _BREAKER:
                self._tally.put("breaker_state", (event.target,), _BREAKER[event.reason])

    def count(self, name: str, labels: Labels = (), by: float = 1.0) -> None:
        """Count something else that is a family."""
        self._tally.add(name, labels, by)

    def ask(self, source: Source) -> None:
        """Ask ``source`` for its figures whenever the counts are looked at."""
        self._sources.append(source)

    def tally(self) -> MetricSet:
        """All counts of this worker, now."""
        made = MetricSet(self._bounds)
        made.merge(self._tally)
        for (api, model, tenant, status, replica), series in self._labels.items():
            if series.count:
                made.add("requests", (api, model, tenant, status, replica), series.count)
            for kind, number in (("input", series.given), ("output", series.made)):
                if number:
                    made.add("tokens", (api, model, tenant, kind), number)
        for source in self._sources:
            try:
                made.take(source())
            except Exception as error:  # a figure that cannot be had must not hide the others
                _LOG.warning("a source of metrics failed: %s", type(error).__name__)
        return made

    def _more(self, recorded: CompletedRequest) -> None:
        """What is not true of most requests."""
        api, add = recorded.asked.api, self._tally.add
        if recorded.error:
            add("request_errors", (api, recorded.error[:_LONGEST]))
        if not recorded.complete:
            add("incomplete_answers", (api,))
        if recorded.guarded:
            add("guarded_requests", (api,))
        for code in self._findings.new(recorded.asked.tenant, recorded.did):
            add("guard_findings", (code,))
        for name in recoveries_of(recorded.did):
            add("guard_recoveries", (name,))
        for header, value in recorded.did:
            if header == b"agentguard-held":
                add("guard_held_streams", (value.decode("latin-1"),))
        for name, _ in recorded.notes:
            add("noted_requests", (name[:_LONGEST],))

    def _found(self, key: _Key) -> _Series:
        """The counts of labels that were not seen yet, or are to stand with others."""
        api, model, tenant, status, replica = key
        known = self._known(model, status)
        full = len(self._labels) >= self.options.series
        labels = (api, model if known else OTHER, tenant, str(status), replica)
        if full and labels not in self._labels:
            labels = (
                api,
                OTHER,
                OTHER,
                f"{status // 100}xx",
                replica if replica in self._replicas() else OTHER,
            )
        series = self._labels.get(labels)
        if series is None:
            series = self._labels[labels] = _Series(
                self._histogram("request_seconds", labels), self._histogram("first_byte_seconds", labels)
            )
        if known and not full:
            self._series[key] = series
        return series

    def _known(self, model: str, status: int) -> bool:
        if model in self._models or not model:
            return True
        if status < 300 and len(model) <= _LONGEST and len(self._models) < self.options.models:
            self._models.add(model)
            return True
        return False

    def _replicas(self) -> set[str]:
        return {labels[4] for labels in self._labels}

    def _histogram(self, name: str, labels: tuple[str, ...]) -> Histogram:
        held = self._tally.histograms.setdefault(name, {})
        return held.setdefault(labels[:2], Histogram(len(self._bounds)))
