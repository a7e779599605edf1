"""Every metric there is: name, kind, help, labels. The docs list the same; a test holds them together.

Names follow Prometheus's practices (https://prometheus.io/docs/practices/naming/): base units, ``_total`` for
what only grows. A name here has neither the prefix nor ``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "agentguard_"
OTHER: Final = "other"
"""The label of what has none of its own."""

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    """One metric.

    Attributes:
        name: without prefix and suffix.
        kind: counters and histograms of several workers are added up; gauges too, unless ``most``.
        help: what it counts, in one line.
        labels: names of its labels, in order.
        most: of several workers' gauges the largest is shown.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    most: bool = False


def _counter(name: str, help: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name=name, kind="counter", help=help, labels=labels)


def _gauge(name: str, help: str, *labels: str, most: bool = False) -> MetricDefinition:
    return MetricDefinition(name=name, kind="gauge", help=help, labels=labels, most=most)


def _histogram(name: str, help: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name=name, kind="histogram", help=help, labels=labels)


FAMILIES: Final[dict[str, MetricDefinition]] = {
    one.name: one
    for one in (
        _counter("requests", "Requests that are over.", "api", "model", "tenant", "status", "replica"),
        _counter("request_errors", "Requests that ended in an error, by its code.", "api", "code"),
        _counter("incomplete_answers", "Answers of which the client did not get all.", "api"),
        _counter("guarded_requests", "Requests of guarded runs.", "api"),
        _counter("noted_requests", "Requests to which something was done on the way.", "note"),
        _counter("tokens", "Tokens that answers told of.", "api", "model", "tenant", "kind"),
        _histogram("request_seconds", "From a request's head to the end of its answer.", "api", "model"),
        _histogram("first_byte_seconds", "From a request's head to its answer's first byte.", "api", "model"),
        _gauge("requests_in_flight", "Requests that are under way."),
        _counter("resilience_events", "What strategies did about faults.", "kind", "source", "target"),
        _counter("retries", "Attempts after the first, by the error before.", "reason"),
        _counter("shed_requests", "Requests that were not sent for lack of room or time.", "reason"),
        _gauge("breaker_state", "Of a breaker: 0 closed, 1 half open, 2 open.", "target", most=True),
        _gauge("replica_state", "1 for the state that a replica is in.", "replica", "state", most=True),
        _gauge("replica_in_flight", "Requests that a replica is working on.", "replica"),
        _counter("replica_attempts", "Requests that were sent to a replica.", "replica"),
        _gauge("panic", "1 while so many replicas are bad that all are used.", most=True),
        _counter("guard_findings", "What was found in guarded runs, each code once a run.", "code"),
        _counter("guard_recoveries", "What was done about it.", "strategy"),
        _counter("guard_held_streams", "Streams of which something was held until the verdict.", "what"),
        _counter("guard_passed_too_long", "Requests that were not guarded, as their bodies were too long."),
        _gauge("guard_runs", "Guarded runs that are remembered."),
        _counter(
            "capture_lost",
            "Requests and events of guarded runs that capture lost, and rows it could not write.",
        ),
        _counter("capture_kept", "Requests and events of guarded runs that capture took in."),
        _counter("spans_sent", "Spans that a collector took."),
        _counter("spans_lost", "Spans that were lost: no room, or no collector."),
        _counter("log_lines_lost", "Lines of the log that were lost: no room, or no disk."),
        _counter("shared_errors", "Times that the shared database could not be used.", "what"),
        _gauge("workers", "Workers that answer."),
        _gauge("draining", "1 while no new requests are taken.", most=True),
        _gauge("build_info", "1; the version is a label.", "version", most=True),
    )
}
