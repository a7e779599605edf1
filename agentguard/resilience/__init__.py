"""Classical fault tolerance for calls to model endpoints: one concern a file, time is a parameter.

The order of strategies is data, around one seam ``send(request, deadline) -> response``; see `pipeline`.
"""

from agentguard.resilience.adaptive_throttling import Throttle
from agentguard.resilience.backoff import Backoff
from agentguard.resilience.base import (
    BasicRequest,
    BoundStrategy,
    Request,
    RequestPriority,
    ResilienceStrategy,
    Runtime,
    Send,
)
from agentguard.resilience.circuit_breaker import Breaker, CircuitBreaker, CircuitState
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.concurrency_limit import Concurrency
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind, Observer, ResilienceEvent
from agentguard.resilience.hedge import Hedge
from agentguard.resilience.load_shedding import Shed
from agentguard.resilience.outlier_ejection import HostBalancer, Outlier, Outliers
from agentguard.resilience.pipeline import AttemptTimeout, Pipeline, Timeout, standard
from agentguard.resilience.retry import Retry
from agentguard.resilience.retry_after import STOP, parse_retry_after, pushback
from agentguard.resilience.retry_budget import BudgetOptions, RetryBudget
from agentguard.resilience.stream_timeout import Stream, StreamTimeout

__all__ = [
    "MONOTONIC",
    "STOP",
    "AttemptTimeout",
    "Backoff",
    "BasicRequest",
    "BoundStrategy",
    "Breaker",
    "BudgetOptions",
    "CircuitBreaker",
    "CircuitState",
    "Clock",
    "Concurrency",
    "Deadline",
    "EventKind",
    "Hedge",
    "HostBalancer",
    "Observer",
    "Outlier",
    "Outliers",
    "Pipeline",
    "Request",
    "RequestPriority",
    "ResilienceEvent",
    "ResilienceStrategy",
    "Retry",
    "RetryBudget",
    "Runtime",
    "Send",
    "Shed",
    "Stream",
    "StreamTimeout",
    "Throttle",
    "Timeout",
    "parse_retry_after",
    "pushback",
    "standard",
]
