"""What workers and the keeper tell each other over a local socket: frames of a length and MessagePack.

A frame is four bytes, its length as a big-endian number, and a list of messages; the keeper answers each with
a report. Both ends are of one installation, so there is no version in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

MOST: Final = 1 << 30
"""Bytes of a frame beyond which it is none."""

_LENGTH: Final = struct.Struct(">I")
HEAD: Final = _LENGTH.size


class CapturedExchange(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """A request that was not guarded as it passed, and what the client got.

    Attributes:
        tenant, run, api: as `agentguard_server.proxy.hooks.ProxyRequest`.
        repeat: the client says that it sends it again.
        body: of the request.
        answer: whole, as an object or as events; empty if the client got none.
    """

    tenant: str
    run: str
    api: str
    repeat: bool
    body: bytes
    answer: bytes


class RunEvent(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """An event of a run that is guarded as it passes.

    Attributes:
        fresh: whether it begins the run, so that what is stored under its id is replaced.
        event: as JSON (`agentguard.trajectory.event_log.events`).
    """

    tenant: str
    run: str
    fresh: bool
    event: bytes


class RecoveryEvent(msgspec.Struct, frozen=True, array_like=True, tag="recovery"):
    """A recovery of such a run, as JSON (`agentguard.recover.persistence`)."""

    tenant: str
    recovery: bytes


Message = CapturedExchange | RunEvent | RecoveryEvent


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
messages_of = msgspec.msgpack.Decoder(list[Message]).decode
report_of = msgspec.msgpack.Decoder(CollectorStatus).decode


def frame(value: Sequence[Message] | CollectorStatus) -> bytes:
    """A frame of messages, or of a report."""
    data = _encode(value)
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """The length that a frame's head gives. Raises ValueError where there can be no such frame."""
    (length,) = _LENGTH.unpack(head)
    if length > MOST:
        raise ValueError("a frame of that length is none")
    return int(length)
