"""Write the reference of the metrics from their definitions in the proxy's source.

python tools/write_metric_reference.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "server")]

from agentguard_server.proxy.admin.status import REPLICA_STATES  # noqa: E402
from agentguard_server.proxy.guard.options import StreamMode  # noqa: E402
from agentguard_server.proxy.telemetry.metric_definitions import (  # noqa: E402
    METRIC_DEFINITIONS,
    METRIC_PREFIX,
    MetricDefinition,
)

from agentguard.resilience.events import EventKind  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
_INTRODUCTION = """# Metrics

The metrics of the [proxy](proxy.md) at `/metrics`, in Prometheus's text format. With `keys`, a client
needs the scope `read`. The section [`metrics`](proxy-configuration.md#metrics) of the configuration sets
limits of labels and buckets of histograms.

`tools/write_metric_reference.py` writes this page from the code.

| metric | type | labels | meaning | of several workers |
|---|---|---|---|---|"""
_LABELS = {
    "*.api": "`chat`, `completions`, `embeddings`, `responses`, `messages`; empty for other paths",
    "*.model": "model that the client named, once a replica has responded for it; `other` above the limits",
    "*.tenant": "tenant of the client's key; `other` above the limits",
    "*.status": "HTTP status of the response to the client",
    "*.replica": "name of the replica in the configuration; empty if no replica responded",
    "request_errors.code": "[error code](error-codes.md)",
    "guard_findings.code": "code of a [taxonomy](taxonomies.md), such as `mast:step_repetition`",
    "tokens.kind": "`input`, `output`",
    "upstream_interventions.kind": "names of the header `agentguard-upstream`, such as `attempts`, `hedged`",
    "resilience_events.kind": ", ".join(f"`{kind.value}`" for kind in EventKind),
    "resilience_events.source": "name of the [strategy](resilience.md)",
    "*.target": "endpoint or replica of the strategy",
    "retries.reason": "error of the preceding attempt",
    "shed_requests.reason": "limit that was exceeded",
    "guard_skipped.reason": "`body_too_large`, `not_supported`",
    "replica_state.state": ", ".join(f"`{state}`" for state in REPLICA_STATES),
    "guard_recoveries.strategy": "[strategy](recovery.md#budgets) of the recovery",
    "guard_buffered_streams.mode": ", ".join(f"`{mode}`" for mode in get_args(StreamMode)),
    "cluster_store_errors.operation": "part of the cluster: `hints`, `sessions`, `effects`, `lost`",
    "build_info.version": "version of agentguard",
}
"""Values by metric and label; ``*`` for all metrics."""
_LABEL_HEADING = """
## Labels

| metric | label | values |
|---|---|---|"""
_NOTES = """
- Tokens are read from the first 64 KB of a response, or from what capture stores of it.
- Counts do not fall when a worker ends.

## Queries

| question | PromQL |
|---|---|"""
_QUERIES = {
    "share of failed requests": 'sum(rate(agentguard_requests_total{status=~"5.."}[5m]))'
    " / sum(rate(agentguard_requests_total[5m]))",
    "95th percentile of the time to the first byte": "histogram_quantile(0.95, sum by (le)"
    " (rate(agentguard_time_to_first_byte_seconds_bucket[5m])))",
    "replicas that are not up": 'sum by (replica, state) (agentguard_replica_state{state!="up"}) > 0',
    "failures of agents by code": "sum by (code) (increase(agentguard_guard_findings_total[1h]))",
    "traffic that the guard cannot join": "sum(rate(agentguard_guard_unjoined_requests_total[5m]))",
}
_END = """
`deploy/grafana` has a dashboard of these metrics ([deployment](deployment.md)).
"""


def build_page() -> str:
    """Return the text of the page."""
    metrics = [_build_row(one) for one in METRIC_DEFINITIONS.values()]
    labels = [(name.split("."), text) for name, text in _LABELS.items()]
    rows = [f"| {_format_name(metric)} | `{label}` | {text} |" for (metric, label), text in labels]
    queries = [f"| {question} | `{query}` |" for question, query in _QUERIES.items()]
    return "\n".join([_INTRODUCTION, *metrics, _LABEL_HEADING, *rows, _NOTES, *queries, _END])


def _format_name(metric: str) -> str:
    return "all" if metric == "*" else f"`{get_exported_name(METRIC_DEFINITIONS[metric])}`"


def get_exported_name(metric: MetricDefinition) -> str:
    """Return the name of a metric at ``/metrics``."""
    return f"{METRIC_PREFIX}{metric.name}{'_total' if metric.kind == 'counter' else ''}"


def list_undescribed_labels() -> list[tuple[str, str]]:
    """Return the labels without a description, with their metrics."""
    return [
        (metric.name, label)
        for metric in METRIC_DEFINITIONS.values()
        for label in metric.label_names
        if not {f"{metric.name}.{label}", f"*.{label}"} & _LABELS.keys()
    ]


def _build_row(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.label_names) or "–"
    merge = "maximum" if metric.merges_by_maximum else "sum"
    return f"| `{get_exported_name(metric)}` | {metric.kind} | {labels} | {metric.help} | {merge} |"


if __name__ == "__main__":
    PAGE.write_text(build_page(), encoding="utf-8")
