"""Protocol between workers and the collector over a local socket: MessagePack in length-prefixed frames.

A frame is a length of four bytes, big-endian, and a list of messages. The collector answers each frame with
its status. Both ends run the same installation, so the protocol has no version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec
from pydantic import BaseModel, ConfigDict

from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions


class CollectorConfig(BaseModel):
    """Configuration of the collector.

    Attributes:
        socket_path: path of the socket on which the collector listens.
        capture: section ``capture`` of the proxy's configuration.
        guard: section ``guard``, with the policy itself in place of its path.
        run_name_suffix: suffix of the IDs of named runs that no guard records.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    socket_path: str
    capture: CaptureOptions
    guard: GuardOptions
    run_name_suffix: str = ""


MAX_FRAME_BYTES: Final = 1 << 30
"""Upper bound on the length of a frame."""

_LENGTH_FORMAT: Final = struct.Struct(">I")
HEADER_BYTES: Final = _LENGTH_FORMAT.size


class CapturedExchange(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """Request without an inline guard, and its response.

    Attributes:
        tenant, run_id, api: see `agentguard_server.proxy.hooks.ProxyRequest`.
        is_retry: True if the client marks the request as a retry.
        request_body: body of the request.
        response: whole response, as an object or as events; empty if the client received no whole response.
        started_at, ended_at: epoch seconds of the request head and of the end of the response.
    """

    tenant: str
    run_id: str
    api: str
    is_retry: bool
    request_body: bytes
    response: bytes
    started_at: float
    ended_at: float


class RunEvent(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """Event of a run with an inline guard.

    Attributes:
        is_new: True if the event begins the run; it then replaces a stored run of the same ID.
        event: event as JSON (`agentguard.trajectory.event_log.recorder`).
    """

    tenant: str
    run_id: str
    is_new: bool
    event: bytes


class RecoveryEvent(msgspec.Struct, frozen=True, array_like=True, tag="recovery"):
    """Recovery of a run with an inline guard, as JSON (`agentguard.recover.recovery_rows`)."""

    tenant: str
    recovery: bytes


class AcceptanceEvent(msgspec.Struct, frozen=True, array_like=True, tag="acceptance"):
    """Verdict of the acceptance test of a run with an inline guard.

    Attributes:
        data: input, output and checks as JSON (`agentguard.recover.acceptance.acceptance_record`).
    """

    tenant: str
    run_id: str
    attempt: int
    accepted: bool
    data: bytes


CollectorMessage = CapturedExchange | RunEvent | RecoveryEvent | AcceptanceEvent


class CollectorStatus(msgspec.Struct, frozen=True, array_like=True):
    """Status of the collector, its reply to a frame.

    Attributes:
        handled: number of messages of this connection that the collector has handled.
        failed: number of messages and runs that it could not process since its start.
        written, pending, lost, refused: numbers of rows; see `agentguard.store.write.writer.WriterHealth`.
        runs: number of runs that have ended since its start.
        diagnosed: number of these runs that were diagnosed.
        undiagnosed: number of these runs whose diagnosis was dropped or failed.
        error: last error of the database; empty while writes succeed.
    """

    handled: int = 0
    failed: int = 0
    written: int = 0
    pending: int = 0
    lost: int = 0
    refused: int = 0
    runs: int = 0
    diagnosed: int = 0
    undiagnosed: int = 0
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
decode_messages = msgspec.msgpack.Decoder(list[CollectorMessage]).decode
decode_status = msgspec.msgpack.Decoder(CollectorStatus).decode


def encode_frame(value: Sequence[CollectorMessage] | CollectorStatus) -> bytes:
    """Encode messages, or a status, as a frame."""
    data = _encode(value)
    return _LENGTH_FORMAT.pack(len(data)) + data


def parse_frame_length(header: bytes) -> int:
    """Return the length in a frame's header. Raises ValueError if it exceeds the upper bound."""
    (length,) = _LENGTH_FORMAT.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError("the length of a frame is not valid")
    return int(length)
