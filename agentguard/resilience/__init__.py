"""Classical fault tolerance for calls to model endpoints: one concern a file, time is a parameter.

The order of strategies is data, around one seam ``send(request, deadline) -> response``; see `pipeline`.
"""

from agentguard.resilience.backoff import Backoff
from agentguard.resilience.breaker import Breaker, CircuitBreaker, State
from agentguard.resilience.budget import Budget, BudgetOptions
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.concurrency import Concurrency
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import Event, EventKind, Observer
from agentguard.resilience.hedge import Hedge
from agentguard.resilience.outlier import Outlier, Outliers, Spread
from agentguard.resilience.pipeline import AttemptTimeout, Pipeline, Timeout, standard
from agentguard.resilience.progress import Progress, Stream
from agentguard.resilience.retry import Retry
from agentguard.resilience.retry_after import STOP, parse_retry_after, pushback
from agentguard.resilience.seam import Call, Layer, Priority, Request, Runtime, Send, Strategy
from agentguard.resilience.shed import Shed
from agentguard.resilience.throttle import Throttle

__all__ = [
    "MONOTONIC",
    "STOP",
    "AttemptTimeout",
    "Backoff",
    "Breaker",
    "Budget",
    "BudgetOptions",
    "Call",
    "CircuitBreaker",
    "Clock",
    "Concurrency",
    "Deadline",
    "Event",
    "EventKind",
    "Hedge",
    "Layer",
    "Observer",
    "Outlier",
    "Outliers",
    "Pipeline",
    "Priority",
    "Progress",
    "Request",
    "Retry",
    "Runtime",
    "Send",
    "Shed",
    "Spread",
    "State",
    "Strategy",
    "Stream",
    "Throttle",
    "Timeout",
    "parse_retry_after",
    "pushback",
    "standard",
]
