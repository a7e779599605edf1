"""Metrics of requests and resilience events; a request only adds to plain numbers.

An increment of a labelled counter of prometheus-client takes several microseconds. The proxy therefore
counts itself, and `render_prometheus` converts the counts when a client requests them.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Any, Final

from agentguard._bounded_map import BoundedMap
from agentguard.resilience.events import EventKind, ResilienceEvent
from agentguard_server.proxy.hooks import CompletedRequest, GuardOutcome
from agentguard_server.proxy.telemetry.metric_definitions import METRIC_DEFINITIONS, OTHER_LABEL
from agentguard_server.proxy.telemetry.options import MetricsOptions

Labels = tuple[str, ...]
MetricSample = tuple[str, Labels, float]
"""Name of a metric, values of its labels, and a number."""

MAX_LABEL_SETS: Final = 20_000


class Histogram:
    """Counts by bucket; the last bucket has the values above all bounds."""

    __slots__ = ("bucket_counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.bucket_counts = [0] * (buckets + 1)
        self.sum = 0.0


class MetricSet:
    """Metrics by name and labels.

    Attributes:
        bounds: upper bounds of the histograms, in seconds.
        values: values of counters and gauges.
        histograms: histograms of durations.
    """

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        self.bounds = tuple(bounds)
        self.values: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}

    def add(self, name: str, labels: Labels = (), amount: float = 1.0) -> None:
        """Add to a counter; above `MAX_LABEL_SETS` label sets, new ones are counted as ``other``."""
        values = self.values.setdefault(name, {})
        if labels not in values and len(values) >= MAX_LABEL_SETS:
            labels = (OTHER_LABEL,) * len(labels)
        values[labels] = values.get(labels, 0.0) + amount

    def set_value(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge, or a counter that another component maintains."""
        self.values.setdefault(name, {})[labels] = value

    def merge(self, other: MetricSet, *, include_gauges: bool = True) -> None:
        """Add the metrics of another worker, with or without its gauges."""
        for name, other_values in other.values.items():
            definition = METRIC_DEFINITIONS.get(name)
            if definition is None or (definition.kind == "gauge" and not include_gauges):
                continue
            values = self.values.setdefault(name, {})
            for labels, value in other_values.items():
                old = values.get(labels, 0)
                values[labels] = max(old, value) if definition.merges_by_maximum else old + value
        if other.bounds == self.bounds:
            self._merge_histograms(other)

    def _merge_histograms(self, other: MetricSet) -> None:
        for name, other_histograms in other.histograms.items():
            histograms = self.histograms.setdefault(name, {})
            for labels, added in other_histograms.items():
                total = histograms.setdefault(labels, Histogram(len(self.bounds)))
                total.bucket_counts = list(map(add, total.bucket_counts, added.bucket_counts))
                total.sum += added.sum

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "bounds": list(self.bounds),
            "numbers": [
                [name, list(labels), value]
                for name, values in self.values.items()
                for labels, value in values.items()
            ],
            "histograms": [
                [name, list(labels), one.bucket_counts, one.sum]
                for name, histograms in self.histograms.items()
                for labels, one in histograms.items()
            ],
        }

    @classmethod
    def from_dict(cls, data: Any) -> MetricSet:
        """Convert from plain data. Raises ValueError, TypeError or KeyError if the data is not valid."""
        metrics = cls([float(bound) for bound in data["bounds"]])
        for name, labels, value in data["numbers"]:
            if _is_valid_sample(name, labels):
                metrics.set_value(name, tuple(map(str, labels)), float(value))
        for name, labels, counts, total in data["histograms"]:
            if _is_valid_sample(name, labels) and len(counts) == len(metrics.bounds) + 1:
                histogram = Histogram(len(metrics.bounds))
                histogram.bucket_counts, histogram.sum = [int(one) for one in counts], float(total)
                metrics.histograms.setdefault(name, {})[tuple(map(str, labels))] = histogram
        return metrics

    def add_samples(self, samples: Iterable[MetricSample]) -> None:
        """Add absolute values of other components; unknown metrics are ignored."""
        for name, labels, value in samples:
            if _is_valid_sample(name, labels):
                self.add(name, labels, value)


def _is_valid_sample(name: str, labels: Sequence[str]) -> bool:
    definition = METRIC_DEFINITIONS.get(name)
    return definition is not None and len(labels) == len(definition.label_names)


_LOG = logging.getLogger(__name__)
_MAX_LABEL_CHARS: Final = 120
_BREAKER_VALUES: Final = {"closed": 0.0, "half_open": 1.0, "half-open": 1.0, "open": 2.0}
_TOKEN_APIS: Final = frozenset({"chat", "completions", "embeddings", "responses", "messages"})

_SCAN_BYTES: Final = 4096
_USAGE_FIELD: Final = re.compile(rb'(?<!\\)"usage"\s*:\s*\{')
_COMMON_USAGE: Final = re.compile(
    rb'"usage":\s?\{"prompt_tokens":\s?(\d{1,12}),\s?(?:"total_tokens":\s?\d{1,12},\s?)?'
    rb'"completion_tokens":\s?(\d{1,12})(?!\d)'
)
"""Usage in the order of OpenAI and vLLM; a fast path for most responses."""
_INPUT_TOKENS: Final = re.compile(rb'(?<!\\)"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})(?!\d)')
_OUTPUT_TOKENS: Final = re.compile(rb'(?<!\\)"(?:completion|output)_tokens"\s*:\s*(\d{1,12})(?!\d)')

MetricSource = Callable[[], Iterable[MetricSample]]
"""Function that returns the current values of another component: absolute values, not increments."""

_SeriesKey = tuple[str, str, str, int, str]


class _Series:
    """Counts of one combination of labels."""

    __slots__ = ("count", "duration", "input_tokens", "output_tokens", "time_to_first_byte")

    def __init__(self, duration: Histogram, time_to_first_byte: Histogram) -> None:
        self.count = 0
        self.duration, self.time_to_first_byte = duration, time_to_first_byte
        self.input_tokens = self.output_tokens = 0


class Metrics:
    """Request observer and observer of resilience events that counts both.

    Clients choose model names. Only models with a successful response get a label value, up to a limit.

    Args:
        options: section ``metrics`` of the configuration.
    """

    def __init__(self, options: MetricsOptions | None = None) -> None:
        self.options = options or MetricsOptions()
        self._metric_set = MetricSet(self.options.histogram_buckets)
        self._bounds = self._metric_set.bounds
        self._series: dict[_SeriesKey, _Series] = {}
        self._series_by_labels: dict[tuple[str, str, str, str, str], _Series] = {}
        self._labelled_models: set[str] = set()
        self._sources: list[MetricSource] = []
        self._finding_deduplicator = FindingDeduplicator()

    def record(self, completed: CompletedRequest) -> None:
        """Count a completed request."""
        request = completed.request
        key = (request.api, request.model, request.tenant, completed.status, completed.replica)
        series = self._series.get(key) or self._find_or_create_series(key)
        series.count += 1
        histogram = series.duration
        histogram.bucket_counts[bisect_left(self._bounds, completed.duration_s)] += 1
        histogram.sum += completed.duration_s
        if completed.time_to_first_byte_s is not None:
            histogram = series.time_to_first_byte
            histogram.bucket_counts[bisect_left(self._bounds, completed.time_to_first_byte_s)] += 1
            histogram.sum += completed.time_to_first_byte_s
        if self.options.tokens and completed.status < 300 and request.api in _TOKEN_APIS:
            input_tokens, output_tokens = extract_token_usage(completed.response_body)
            series.input_tokens += input_tokens
            series.output_tokens += output_tokens
        if completed.error_code or completed.notes or completed.guard_outcome or not completed.is_complete:
            self._record_exceptional(completed)

    def __call__(self, event: ResilienceEvent) -> None:
        """Count a resilience event."""
        count = self._metric_set.add
        count("resilience_events", (event.kind.value, event.source, event.target))
        match event.kind:
            case EventKind.RETRY:
                count("retries", (event.reason[:_MAX_LABEL_CHARS],))
            case EventKind.SHED:
                count("shed_requests", (event.reason[:_MAX_LABEL_CHARS],))
            case EventKind.BREAKER if event.reason in _BREAKER_VALUES:
                self._metric_set.set_value("breaker_state", (event.target,), _BREAKER_VALUES[event.reason])

    def add_source(self, source: MetricSource) -> None:
        """Add a source whose values `collect` includes."""
        self._sources.append(source)

    def collect(self) -> MetricSet:
        """Return all metrics of this worker."""
        metrics = MetricSet(self._bounds)
        metrics.merge(self._metric_set)
        for (api, model, tenant, status, replica), series in self._series_by_labels.items():
            if series.count:
                metrics.add("requests", (api, model, tenant, status, replica), series.count)
            for kind, number in (("input", series.input_tokens), ("output", series.output_tokens)):
                if number:
                    metrics.add("tokens", (api, model, tenant, kind), number)
        for source in self._sources:
            try:
                metrics.add_samples(source())
            except Exception as error:  # one failed source must not hide the others
                _LOG.warning("a source of metrics failed: %s", type(error).__name__)
        return metrics

    def _record_exceptional(self, completed: CompletedRequest) -> None:
        """Count errors, aborted responses, actions of the guard and notes; most requests have none."""
        api, count = completed.request.api, self._metric_set.add
        if completed.error_code:
            count("request_errors", (api, completed.error_code[:_MAX_LABEL_CHARS]))
        if not completed.is_complete:
            count("responses_aborted", (api,))
        if (outcome := completed.guard_outcome) is not None:
            count("guard_unjoined_requests" if outcome.is_unjoined else "guarded_requests", (api,))
            for code in self._finding_deduplicator.select_new(completed.request.tenant, outcome):
                count("guard_findings", (code[:_MAX_LABEL_CHARS],))
            for strategy, _ in outcome.recoveries:
                count("guard_recoveries", (strategy[:_MAX_LABEL_CHARS],))
            if outcome.stream_mode:
                count("guard_buffered_streams", (outcome.stream_mode,))
        for name, _ in completed.notes:
            count("upstream_interventions", (name[:_MAX_LABEL_CHARS],))

    def _find_or_create_series(self, key: _SeriesKey) -> _Series:
        """Return the series of a new combination of labels, or the series ``other`` above the limits."""
        api, model, tenant, status, replica = key
        known = self._has_own_label(model, status)
        full = len(self._series_by_labels) >= self.options.max_series
        labels = (api, model if known else OTHER_LABEL, tenant, str(status), replica)
        if full and labels not in self._series_by_labels:
            labels = (
                api,
                OTHER_LABEL,
                OTHER_LABEL,
                f"{status // 100}xx",
                replica if replica in self._list_replicas() else OTHER_LABEL,
            )
        series = self._series_by_labels.get(labels)
        if series is None:
            series = self._series_by_labels[labels] = _Series(
                self._find_or_create_histogram("request_duration_seconds", labels),
                self._find_or_create_histogram("time_to_first_byte_seconds", labels),
            )
        if known and not full:
            self._series[key] = series
        return series

    def _has_own_label(self, model: str, status: int) -> bool:
        if model in self._labelled_models or not model:
            return True
        if (
            status < 300
            and len(model) <= _MAX_LABEL_CHARS
            and len(self._labelled_models) < self.options.max_models
        ):
            self._labelled_models.add(model)
            return True
        return False

    def _list_replicas(self) -> set[str]:
        return {labels[4] for labels in self._series_by_labels}

    def _find_or_create_histogram(self, name: str, labels: tuple[str, ...]) -> Histogram:
        histograms = self._metric_set.histograms.setdefault(name, {})
        return histograms.setdefault(labels[:2], Histogram(len(self._bounds)))


class FindingDeduplicator:
    """Filter for new findings: each request of a run reports all findings of the run.

    Args:
        max_runs: maximum number of runs; above it, the filter discards the least recently used run.
    """

    def __init__(self, max_runs: int = 4096) -> None:
        self._seen_codes = BoundedMap[tuple[str, str], set[str]](max_runs)

    def select_new(self, tenant: str, outcome: GuardOutcome) -> list[str]:
        """Return the codes that no earlier request of the run has reported."""
        if not outcome.findings:
            return []
        key = (tenant, outcome.run_id)
        seen = self._seen_codes[key] = self._seen_codes.get(key) or set()
        new = [code for code, _ in outcome.findings if code not in seen]
        seen.update(new)
        return new


def extract_token_usage(response_body: bytes) -> tuple[int, int]:
    """Return the input and output tokens of a response or of a stream's events; 0 if unknown.

    Every API puts a ``usage`` object at the end of its response or into one of the last events of its stream.
    Anthropic's stream has the input tokens in its first event. The scan therefore covers only both ends.
    Model output cannot match: inside a JSON string each quotation mark follows a backslash.
    """
    at = _find_last_usage(response_body)
    if at >= 0:
        common = _COMMON_USAGE.match(response_body, at)
        if common:
            return int(common[1]), int(common[2])
        output_tokens = _extract_number(_OUTPUT_TOKENS, response_body, at)
        if input_tokens := _extract_number(_INPUT_TOKENS, response_body, at):
            return input_tokens, output_tokens
    else:
        output_tokens = 0
    head = response_body[:_SCAN_BYTES]
    first = _USAGE_FIELD.search(head)
    return (_extract_number(_INPUT_TOKENS, head, first.start()) if first else 0), output_tokens


def _find_last_usage(response_body: bytes) -> int:
    """Return the offset of the last usage object; -1 if the end of the response has none."""
    end = len(response_body)
    least = max(0, end - _SCAN_BYTES)
    while (end := response_body.rfind(b'"usage"', least, end)) >= 0:
        if _USAGE_FIELD.match(response_body, end):
            return end
    return -1


def _extract_number(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    found = pattern.search(data, start, start + _SCAN_BYTES)
    return int(found[1]) if found else 0
