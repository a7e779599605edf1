"""Counts in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import MissingExtra
from agentguard_server.proxy.telemetry.counters import Histogram, MetricSet
from agentguard_server.proxy.telemetry.metric_definitions import FAMILIES, PREFIX, MetricDefinition

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render_prometheus(tally: MetricSet) -> bytes:
    """The counts as the text that a Prometheus reads. Raises MissingExtra without prometheus-client."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise MissingExtra("prometheus-client", "serve") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(tally))
    return generate_latest(registry)


class _Shown:
    """What prometheus-client asks for the metrics: a collector, in its words."""

    def __init__(self, tally: MetricSet) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES.values():
            if family.kind == "histogram":
                held = self._tally.histograms.get(family.name)
                if held:
                    yield _histogram(family, held, self._tally.bounds)
            elif numbers := self._tally.numbers.get(family.name):
                metric = _plain(family)
                for labels, value in numbers.items():
                    metric.add_metric(labels, value)
                yield metric


def _plain(family: MetricDefinition) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return made(PREFIX + family.name, family.help, labels=family.labels)


def _histogram(
    family: MetricDefinition, held: dict[tuple[str, ...], Histogram], bounds: tuple[float, ...]
) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    metric = HistogramMetricFamily(PREFIX + family.name, family.help, labels=family.labels)
    for labels, one in held.items():
        buckets, total = [], 0
        for bound, count in zip([*map(str, bounds), "+Inf"], one.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        metric.add_metric(labels, buckets, sum_value=one.sum)
    return metric
