import dataclasses
import logging
import math

import pytest

from agentguard.errors import ConfigError
from agentguard.resilience import (
    AdaptiveThrottlingOptions,
    AttemptTimeoutOptions,
    Backoff,
    CircuitBreakerOptions,
    ConcurrencyLimitOptions,
    EventKind,
    HedgeOptions,
    LoadSheddingOptions,
    OutlierDetectionOptions,
    ResilienceEvent,
    RetryBudgetOptions,
    RetryOptions,
    StreamTimeoutOptions,
    TimeoutOptions,
)
from agentguard.resilience.events import Observers

KINDS = (
    AttemptTimeoutOptions,
    Backoff,
    CircuitBreakerOptions,
    RetryBudgetOptions,
    ConcurrencyLimitOptions,
    HedgeOptions,
    OutlierDetectionOptions,
    StreamTimeoutOptions,
    RetryOptions,
    LoadSheddingOptions,
    AdaptiveThrottlingOptions,
    TimeoutOptions,
)
NUMBERS = [
    (kind, field.name)
    for kind in KINDS
    for field in dataclasses.fields(kind)
    if isinstance(getattr(kind(), field.name), int | float)
]


@pytest.mark.parametrize(("kind", "field"), NUMBERS, ids=lambda v: getattr(v, "__name__", v))
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "3", None])
def test_numbers_have_ranges_and_errors_name_the_field(kind, field, value):
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{field} "):
        kind(**{field: value})


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        (Backoff, {"initial_delay_s": 20.0}, "max_delay_s"),
        (RetryBudgetOptions, {"burst": 1.0}, "burst"),
        (ConcurrencyLimitOptions, {"initial_limit": 5000}, "initial_limit"),
        (ConcurrencyLimitOptions, {"algorithm": "vegas"}, "algorithm"),
        (OutlierDetectionOptions, {"max_ejection_time_s": 1.0}, "max_ejection_time_s"),
        (RetryOptions, {"statuses": frozenset({200})}, "statuses"),
        (RetryOptions, {"max_attempts": 2.0}, "max_attempts"),
    ],
)
def test_inconsistent_options_are_rejected(kind, options, field):
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{field} "):
        kind(**options)


def test_description_contains_every_option():
    for kind in KINDS:
        line = kind().describe()
        assert line.startswith(kind.name)
        assert all(f"{field.name}=" in line for field in dataclasses.fields(kind))
    assert (
        AdaptiveThrottlingOptions(k=3.0).describe()
        == "adaptive_throttling k=3 window_s=30 min_requests=20 max_rejection_probability=0.9"
    )


def test_failing_observer_is_ignored(caplog):
    seen = []

    def broken(event):
        raise ValueError("secret")

    event = ResilienceEvent(kind=EventKind.RETRY, at=1.0, source="retry")
    with caplog.at_level(logging.DEBUG):
        Observers([broken, seen.append])(event)
    assert seen == [event]
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text
