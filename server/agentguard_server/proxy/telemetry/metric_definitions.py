"""Every metric there is: name, kind, help, labels. The docs list the same; a test holds them together.

Names follow Prometheus's practices (https://prometheus.io/docs/practices/naming/): base units, ``_total`` for
what only grows. A name here has neither the prefix nor ``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

METRIC_PREFIX: Final = "agentguard_"
OTHER_LABEL: Final = "other"
"""The label of what has none of its own."""

MetricKind = Literal["counter", "gauge", "histogram"]


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
    kind: MetricKind
    help: str
    label_names: tuple[str, ...] = ()
    merges_by_maximum: bool = False


def _define_counter(name: str, help: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name=name, kind="counter", help=help, label_names=labels)


def _define_gauge(name: str, help: str, *labels: str, merges_by_maximum: bool = False) -> MetricDefinition:
    return MetricDefinition(
        name=name, kind="gauge", help=help, label_names=labels, merges_by_maximum=merges_by_maximum
    )


def _define_histogram(name: str, help: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name=name, kind="histogram", help=help, label_names=labels)


METRIC_DEFINITIONS: Final[dict[str, MetricDefinition]] = {
    one.name: one
    for one in (
        _define_counter("requests", "Requests that are over.", "api", "model", "tenant", "status", "replica"),
        _define_counter("request_errors", "Requests that ended in an error, by its code.", "api", "code"),
        _define_counter("incomplete_answers", "Answers of which the client did not get all.", "api"),
        _define_counter("guarded_requests", "Requests of guarded runs.", "api"),
        _define_counter("noted_requests", "Requests to which something was done on the way.", "note"),
        _define_counter("tokens", "Tokens that answers told of.", "api", "model", "tenant", "kind"),
        _define_histogram(
            "request_seconds", "From a request's head to the end of its answer.", "api", "model"
        ),
        _define_histogram(
            "first_byte_seconds", "From a request's head to its answer's first byte.", "api", "model"
        ),
        _define_gauge("requests_in_flight", "Requests that are under way."),
        _define_counter("resilience_events", "What strategies did about faults.", "kind", "source", "target"),
        _define_counter("retries", "Attempts after the first, by the error before.", "reason"),
        _define_counter("shed_requests", "Requests that were not sent for lack of room or time.", "reason"),
        _define_gauge(
            "breaker_state", "Of a breaker: 0 closed, 1 half open, 2 open.", "target", merges_by_maximum=True
        ),
        _define_gauge(
            "replica_state",
            "1 for the state that a replica is in.",
            "replica",
            "state",
            merges_by_maximum=True,
        ),
        _define_gauge("replica_in_flight", "Requests that a replica is working on.", "replica"),
        _define_counter("replica_attempts", "Requests that were sent to a replica.", "replica"),
        _define_gauge("panic", "1 while so many replicas are bad that all are used.", merges_by_maximum=True),
        _define_counter("guard_findings", "What was found in guarded runs, each code once a run.", "code"),
        _define_counter("guard_recoveries", "What was done about it.", "strategy"),
        _define_counter(
            "guard_held_streams", "Streams of which something was held until the verdict.", "what"
        ),
        _define_counter(
            "guard_passed_too_long", "Requests that were not guarded, as their bodies were too long."
        ),
        _define_gauge("guard_runs", "Guarded runs that are remembered."),
        _define_counter(
            "capture_lost",
            "Requests and events of guarded runs that capture lost, and rows it could not write.",
        ),
        _define_counter("capture_kept", "Requests and events of guarded runs that capture took in."),
        _define_counter("spans_sent", "Spans that a collector took."),
        _define_counter("spans_lost", "Spans that were lost: no room, or no collector."),
        _define_counter("log_lines_lost", "Lines of the log that were lost: no room, or no disk."),
        _define_counter("shared_errors", "Times that the shared database could not be used.", "what"),
        _define_gauge("workers", "Workers that answer."),
        _define_gauge("draining", "1 while no new requests are taken.", merges_by_maximum=True),
        _define_gauge("build_info", "1; the version is a label.", "version", merges_by_maximum=True),
    )
}
