"""Fault tolerance for calls to model endpoints: strategies with an injectable clock, one or two a module.

A pipeline applies strategies in a configured order around ``send(request, deadline) -> response``; see
`pipeline`.
"""

from agentguard.resilience.base import (
    BasicRequest,
    Request,
    RequestPriority,
    ResilienceStrategy,
    Runtime,
    Send,
    StrategyOptions,
)
from agentguard.resilience.circuit_breaker import (
    AdaptiveThrottlingOptions,
    CircuitBreaker,
    CircuitBreakerOptions,
    CircuitState,
)
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.deadline import AttemptTimeoutOptions, Deadline, TimeoutOptions
from agentguard.resilience.events import EventKind, Observer, ResilienceEvent
from agentguard.resilience.hedge import HedgeOptions
from agentguard.resilience.load_shedding import ConcurrencyLimitOptions, LoadSheddingOptions
from agentguard.resilience.outlier_ejection import HostBalancer, OutlierDetection, OutlierDetectionOptions
from agentguard.resilience.pipeline import Pipeline, build_standard_strategies
from agentguard.resilience.retry import Backoff, RetryBudget, RetryBudgetOptions, RetryOptions
from agentguard.resilience.retry_after import DO_NOT_RETRY, parse_pushback, parse_retry_after
from agentguard.resilience.stream_timeout import MonitoredStream, StreamTimeoutOptions

__all__ = [
    "DO_NOT_RETRY",
    "MONOTONIC",
    "AdaptiveThrottlingOptions",
    "AttemptTimeoutOptions",
    "Backoff",
    "BasicRequest",
    "CircuitBreaker",
    "CircuitBreakerOptions",
    "CircuitState",
    "Clock",
    "ConcurrencyLimitOptions",
    "Deadline",
    "EventKind",
    "HedgeOptions",
    "HostBalancer",
    "LoadSheddingOptions",
    "MonitoredStream",
    "Observer",
    "OutlierDetection",
    "OutlierDetectionOptions",
    "Pipeline",
    "Request",
    "RequestPriority",
    "ResilienceEvent",
    "ResilienceStrategy",
    "RetryBudget",
    "RetryBudgetOptions",
    "RetryOptions",
    "Runtime",
    "Send",
    "StrategyOptions",
    "StreamTimeoutOptions",
    "TimeoutOptions",
    "build_standard_strategies",
    "parse_pushback",
    "parse_retry_after",
]
