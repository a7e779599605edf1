"""What workers and the keeper tell each other over a local socket: frames of a length and MessagePack.

A frame is four bytes, its length as a big-endian number, and a list of messages; the keeper answers each with
a report. Both ends are of one installation, so there is no version in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec
from pydantic import BaseModel, ConfigDict

from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions


class CollectorConfig(BaseModel):
    """The keeper's configuration.

    Attributes:
        path: of the socket that it listens on.
        capture: what is kept, and where.
        guard: section ``guard`` with the policy itself: detectors, localizer, and how requests form runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    socket_path: str
    capture: CaptureOptions
    guard: GuardOptions


MAX_FRAME_BYTES: Final = 1 << 30
"""Bytes of a frame beyond which it is none."""

_LENGTH_FORMAT: Final = struct.Struct(">I")
HEADER_BYTES: Final = _LENGTH_FORMAT.size


class CapturedExchange(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """A request that was not guarded as it passed, and what the client got.

    Attributes:
        tenant, run, api: as `agentguard_server.proxy.hooks.ProxyRequest`.
        repeat: the client says that it sends it again.
        body: of the request.
        answer: whole, as an object or as events; empty if the client got none.
    """

    tenant: str
    run_id: str
    api: str
    is_retry: bool
    request_body: bytes
    response: bytes


class RunEvent(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """An event of a run that is guarded as it passes.

    Attributes:
        fresh: whether it begins the run, so that what is stored under its id is replaced.
        event: as JSON (`agentguard.trajectory.event_log.events`).
    """

    tenant: str
    run_id: str
    is_new: bool
    event: bytes


class RecoveryEvent(msgspec.Struct, frozen=True, array_like=True, tag="recovery"):
    """A recovery of such a run, as JSON (`agentguard.recover.persistence`)."""

    tenant: str
    recovery: bytes


CollectorMessage = CapturedExchange | RunEvent | RecoveryEvent


class CollectorStatus(msgspec.Struct, frozen=True, array_like=True):
    """What the keeper answers a frame with.

    Attributes:
        handled: messages of this connection that it has taken in.
        failed: messages that it could do nothing with, since it was started.
        written, pending, lost, refused: rows, as `agentguard.store.write.writer.WriterHealth`.
        runs: runs that have ended, since it was started; ``diagnosed`` of them were diagnosed.
        error: what went wrong last with the database; empty while it can be written to.
    """

    handled: int = 0
    failed: int = 0
    written: int = 0
    pending: int = 0
    lost: int = 0
    refused: int = 0
    runs: int = 0
    diagnosed: int = 0
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
decode_messages = msgspec.msgpack.Decoder(list[CollectorMessage]).decode
decode_status = msgspec.msgpack.Decoder(CollectorStatus).decode


def encode_frame(value: Sequence[CollectorMessage] | CollectorStatus) -> bytes:
    """A frame of messages, or of a report."""
    data = _encode(value)
    return _LENGTH_FORMAT.pack(len(data)) + data


def parse_frame_length(header: bytes) -> int:
    """The length that a frame's head gives. Raises ValueError where there can be no such frame."""
    (length,) = _LENGTH_FORMAT.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError("a frame of that length is none")
    return int(length)
