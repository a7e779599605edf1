"""Definitions of all metrics: name, kind, help and labels. A test compares them with the docs.

Names follow the practices of Prometheus (https://prometheus.io/docs/practices/naming/): base units, and
``_total`` for counters. A name here has neither the prefix nor ``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

METRIC_PREFIX: Final = "agentguard_"
OTHER_LABEL: Final = "other"
"""Label value for all values without their own label."""

MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    """Definition of one metric.

    Attributes:
        name: name without prefix and suffix.
        kind: kind of the metric. The values of several workers are summed, unless ``merges_by_maximum``.
        help: description in one line.
        label_names: names of the labels in order.
        merges_by_maximum: True to use the maximum of several workers' values instead of the sum.
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
        _define_counter("requests", "Completed requests.", "api", "model", "tenant", "status", "replica"),
        _define_counter("request_errors", "Requests that ended in an error, by error code.", "api", "code"),
        _define_counter("responses_aborted", "Responses that the client did not receive completely.", "api"),
        _define_counter("guarded_requests", "Requests of guarded runs.", "api"),
        _define_counter(
            "guard_unjoined_requests", "Requests that continue a run which the guard does not know.", "api"
        ),
        _define_counter(
            "upstream_interventions", "Retries, hedges, failovers, quorums and resumptions, by kind.", "kind"
        ),
        _define_counter("tokens", "Tokens that the responses report.", "api", "model", "tenant", "kind"),
        _define_histogram(
            "request_duration_seconds",
            "Time from the head of a request to the end of its response.",
            "api",
            "model",
        ),
        _define_histogram(
            "time_to_first_byte_seconds",
            "Time from the head of a request to the first byte of its response.",
            "api",
            "model",
        ),
        _define_gauge("requests_in_flight", "Requests in progress."),
        _define_counter("resilience_events", "Events of the strategies.", "kind", "source", "target"),
        _define_counter("retries", "Attempts after the first, by the preceding error.", "reason"),
        _define_counter("shed_requests", "Requests that were rejected for lack of capacity.", "reason"),
        _define_gauge(
            "breaker_state",
            "State of a circuit breaker: 0 closed, 1 half open, 2 open.",
            "target",
            merges_by_maximum=True,
        ),
        _define_gauge(
            "replica_state",
            "1 for the current state of the replica.",
            "replica",
            "state",
            merges_by_maximum=True,
        ),
        _define_gauge("replica_in_flight", "Requests in progress at the replica.", "replica"),
        _define_counter("upstream_requests", "Requests that were sent to the replica.", "replica"),
        _define_gauge(
            "backend_panic_mode",
            "1 while too few replicas are healthy and all are used.",
            merges_by_maximum=True,
        ),
        _define_counter("guard_findings", "Findings in guarded runs; each code counts once per run.", "code"),
        _define_counter("guard_recoveries", "Recoveries in guarded runs.", "strategy"),
        _define_counter("guard_buffered_streams", "Streams that the guard buffered, by stream mode.", "mode"),
        _define_counter("guard_skipped", "Requests that the guard did not check.", "reason"),
        _define_gauge("guard_active_sessions", "Sessions of guarded runs in memory."),
        _define_counter(
            "capture_dropped", "Requests and events that capture dropped, and rows that it could not write."
        ),
        _define_counter("capture_accepted", "Requests and events that capture accepted."),
        _define_counter("spans_sent", "Spans that the collector accepted."),
        _define_counter("spans_dropped", "Spans dropped because the queue was full or the export failed."),
        _define_counter(
            "log_lines_dropped", "Log lines dropped because the queue was full or the write failed."
        ),
        _define_counter("cluster_store_errors", "Failed operations on the cluster store.", "operation"),
        _define_gauge("workers", "Workers that respond."),
        _define_gauge("draining", "1 while the proxy accepts no new requests.", merges_by_maximum=True),
        _define_gauge("build_info", "1; the label has the version.", "version", merges_by_maximum=True),
    )
}
