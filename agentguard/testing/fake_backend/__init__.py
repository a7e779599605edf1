"""Model endpoint that fails on command, for tests of code that calls model endpoints.

::

    from agentguard.testing.fake_backend import FaultBackend, Ok, Reset, StatusFault

    with FaultBackend([StatusFault(status=503, retry_after="1"), Reset(), Ok()]) as backend:
        ...  # point a client at backend.url
    assert [one.attempt for one in backend.requests] == [0, 1, 2]

docs/faults.md describes every fault, and how to script faults for each request.
"""

from agentguard.testing.fake_backend.expected import FakeReply, build_expected_reply
from agentguard.testing.fake_backend.faults import (
    Corrupt,
    ErrorEvent,
    Hang,
    HeartbeatOnly,
    Huge,
    InjectedFault,
    InvalidAnswer,
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
from agentguard.testing.fake_backend.server import FaultBackend

__all__ = [
    "Corrupt",
    "ErrorEvent",
    "FakeReply",
    "FaultBackend",
    "FaultSchedule",
    "Hang",
    "HeartbeatOnly",
    "Huge",
    "InjectedFault",
    "InvalidAnswer",
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
    "build_expected_reply",
]
