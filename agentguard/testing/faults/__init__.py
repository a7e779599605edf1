"""A model endpoint that fails on command, for tests of whatever calls model endpoints.

::

    from agentguard.testing.faults import FaultBackend, Ok, Reset, Status

    with FaultBackend([Status(status=503, retry_after="1"), Reset(), Ok()]) as backend:
        ...  # point a client at backend.url
    assert [one.attempt for one in backend.seen] == [0, 1, 2]

Every fault, and how to script them for each request, is described in docs/faults.md.
"""

from agentguard.testing.faults.answers import Reply, right
from agentguard.testing.faults.backend import FaultBackend
from agentguard.testing.faults.kinds import (
    Beat,
    Corrupt,
    ErrorEvent,
    Fault,
    Hang,
    Huge,
    Junk,
    Ok,
    Raw,
    Refuse,
    Reset,
    Stall,
    Status,
    Trickle,
    Truncate,
)
from agentguard.testing.faults.script import Marked, Schedule, Script, Seen

__all__ = [
    "Beat",
    "Corrupt",
    "ErrorEvent",
    "Fault",
    "FaultBackend",
    "Hang",
    "Huge",
    "Junk",
    "Marked",
    "Ok",
    "Raw",
    "Refuse",
    "Reply",
    "Reset",
    "Schedule",
    "Script",
    "Seen",
    "Stall",
    "Status",
    "Trickle",
    "Truncate",
    "right",
]
