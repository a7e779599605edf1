"""Renderer of metrics in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import MissingExtra
from agentguard_server.proxy.telemetry.metric_definitions import (
    METRIC_DEFINITIONS,
    METRIC_PREFIX,
    MetricDefinition,
)
from agentguard_server.proxy.telemetry.metrics import Histogram, MetricSet

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render_prometheus(metric_set: MetricSet) -> bytes:
    """Render metrics in the text format of Prometheus. Raises MissingExtra without prometheus-client."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise MissingExtra("prometheus-client", "serve") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MetricSetCollector(metric_set))
    return generate_latest(registry)


class _MetricSetCollector:
    """Collector of prometheus-client for a metric set."""

    def __init__(self, metric_set: MetricSet) -> None:
        self._metric_set = metric_set

    def collect(self) -> Iterator[Metric]:
        for definition in METRIC_DEFINITIONS.values():
            if definition.kind == "histogram":
                if histograms := self._metric_set.histograms.get(definition.name):
                    yield _build_histogram_family(definition, histograms, self._metric_set.bounds)
            elif values := self._metric_set.values.get(definition.name):
                metric = _build_metric_family(definition)
                for labels, value in values.items():
                    metric.add_metric(labels, value)
                yield metric


def _build_metric_family(definition: MetricDefinition) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
    return family(METRIC_PREFIX + definition.name, definition.help, labels=definition.label_names)


def _build_histogram_family(
    definition: MetricDefinition, histograms: dict[tuple[str, ...], Histogram], bounds: tuple[float, ...]
) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    metric = HistogramMetricFamily(
        METRIC_PREFIX + definition.name, definition.help, labels=definition.label_names
    )
    for labels, one in histograms.items():
        buckets, total = [], 0
        for bound, count in zip([*map(str, bounds), "+Inf"], one.bucket_counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        metric.add_metric(labels, buckets, sum_value=one.sum)
    return metric
