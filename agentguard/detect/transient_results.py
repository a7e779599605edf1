"""Recognition of transient results, after which an equal call may return another result."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentguard.detect.result_classification import ResultReason
from agentguard.detect.step_facts import ToolResult

_TRANSIENT_REASONS = frozenset({ResultReason.HTTP, ResultReason.TIMEOUT})
_TRANSIENT_PATTERN = re.compile(
    r"\b(?:429|502|503|504|timed[ -]?out|time-?out|timeouterror|rate limit(?:ed)?|too many requests"
    r"|overloaded|(?:temporarily|service) unavailable|try again later"
    r"|connection (?:reset|refused|aborted|closed|error))\b"
)
_PENDING_PATTERN = re.compile(
    r"\A\W{0,3}(?:still )?(?:pending|running|queued|processing|in[ _-]?progress"
    r"|not (?:ready|finished|done) yet|waiting|starting)\b"
    r"|\b(?:status|state|phase)\W{1,6}(?:is )?(?:still )?(?:pending|running|queued|processing"
    r"|in[ _-]?progress|waiting|starting|scheduled|submitted|started|building|creating"
    r"|initiali[sz]ing|provisioning)\b"
    r"|\bstill (?:pending|running|queued|processing|in progress|working|building|starting)\b"
)


def are_transient(results: Sequence[ToolResult]) -> bool:
    """Return True if all results are a pending status or a transient error; False without results."""
    return bool(results) and all(is_transient_error(result) or _is_pending(result) for result in results)


def is_transient_error(result: ToolResult) -> bool:
    """Return True if a result is an error that a retry may avoid, such as a timeout or HTTP 503."""
    error = result.error
    if error is None:
        return False
    return error.reason in _TRANSIENT_REASONS or bool(_TRANSIENT_PATTERN.search(result.lower_text[:400]))


def _is_pending(result: ToolResult) -> bool:
    return _PENDING_PATTERN.search(result.lower_text[:2_000]) is not None
