"""Fault tolerance for calls to model endpoints: one strategy per module, with an injectable clock.

A pipeline applies strategies in a configured order around ``send(request, deadline) -> response``; see
`pipeline`.
"""

from agentguard.resilience.adaptive_throttling import AdaptiveThrottling
from agentguard.resilience.base import (
    BasicRequest,
    BoundStrategy,
    Request,
    RequestPriority,
    ResilienceStrategy,
    Runtime,
    Send,
)
from agentguard.resilience.circuit_breaker import CircuitBreaker, CircuitBreakerOptions, CircuitState
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.deadline import AttemptTimeout, Deadline, Timeout
from agentguard.resilience.events import EventKind, Observer, ResilienceEvent
from agentguard.resilience.hedge import Hedge
from agentguard.resilience.load_shedding import ConcurrencyOptions, LoadShedding
from agentguard.resilience.outlier_ejection import HostBalancer, OutlierDetection, OutlierDetector
from agentguard.resilience.pipeline import Pipeline, build_standard_strategies
from agentguard.resilience.retry import Backoff, Retry, RetryBudget, RetryBudgetOptions
from agentguard.resilience.retry_after import DO_NOT_RETRY, parse_pushback, parse_retry_after
from agentguard.resilience.stream_timeout import MonitoredStream, StreamTimeout

__all__ = [
    "DO_NOT_RETRY",
    "MONOTONIC",
    "AdaptiveThrottling",
    "AttemptTimeout",
    "Backoff",
    "BasicRequest",
    "BoundStrategy",
    "CircuitBreaker",
    "CircuitBreakerOptions",
    "CircuitState",
    "Clock",
    "ConcurrencyOptions",
    "Deadline",
    "EventKind",
    "Hedge",
    "HostBalancer",
    "LoadShedding",
    "MonitoredStream",
    "Observer",
    "OutlierDetection",
    "OutlierDetector",
    "Pipeline",
    "Request",
    "RequestPriority",
    "ResilienceEvent",
    "ResilienceStrategy",
    "Retry",
    "RetryBudget",
    "RetryBudgetOptions",
    "Runtime",
    "Send",
    "StreamTimeout",
    "Timeout",
    "build_standard_strategies",
    "parse_pushback",
    "parse_retry_after",
]
