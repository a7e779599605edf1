"""Fake backend: a model endpoint with scripted faults, for tests of code that calls model endpoints.

::

    from agentguard.testing.fake_backend import FakeBackend, Ok, Reset, StatusFault

    with FakeBackend([StatusFault(status=503, retry_after="1"), Reset(), Ok()]) as backend:
        ...  # point a client at backend.url
    assert [one.attempt for one in backend.requests] == [0, 1, 2]

docs/faults.md describes every fault, and how to script faults for each request.
"""

from agentguard.testing.fake_backend.expected_response import FakeResponse, build_expected_response
from agentguard.testing.fake_backend.faults import (
    Corrupt,
    ErrorEvent,
    Hang,
    HeartbeatOnly,
    Huge,
    InjectedFault,
    InvalidResponse,
    Ok,
    Raw,
    Refuse,
    Reset,
    Stall,
    StatusFault,
    Trickle,
    Truncate,
)
from agentguard.testing.fake_backend.script import FaultSchedule, MarkScript, RecordedRequest, Script
from agentguard.testing.fake_backend.server import FakeBackend

__all__ = [
    "Corrupt",
    "ErrorEvent",
    "FakeBackend",
    "FakeResponse",
    "FaultSchedule",
    "Hang",
    "HeartbeatOnly",
    "Huge",
    "InjectedFault",
    "InvalidResponse",
    "MarkScript",
    "Ok",
    "Raw",
    "RecordedRequest",
    "Refuse",
    "Reset",
    "Script",
    "Stall",
    "StatusFault",
    "Trickle",
    "Truncate",
    "build_expected_response",
]
