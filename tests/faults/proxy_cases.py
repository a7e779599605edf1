"""Cases of the fault matrix: a fault, and the result that the client must get.

Each case is one request with a unique mark, so that all cases run concurrently against the same two replicas.
Faults are counted over both replicas, so that a failover meets the next fault.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentguard.testing.fake_backend import (
    Corrupt,
    ErrorEvent,
    Hang,
    HeartbeatOnly,
    Huge,
    InjectedFault,
    InvalidResponse,
    Ok,
    Raw,
    RecordedRequest,
    Reset,
    Stall,
    StatusFault,
    Trickle,
    Truncate,
)

Kind = Literal["transient", "refused", "elsewhere", "final", "partial", "fine"]
"""Classes of faults for a caller:

- ``transient``: no result, but the endpoint may have processed the request;
- ``refused``: the endpoint did not process the request;
- ``elsewhere``: this replica cannot answer in time, another replica can;
- ``final``: a definitive error of the endpoint;
- ``partial``: interrupted after the first token;
- ``fine``: an answer.
"""
REPLICAS = 2

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"

WHOLE: dict[str, tuple[InjectedFault, Kind]] = {
    "reset": (Reset(), "transient"),
    "reset-in-body": (Reset(tokens=0), "transient"),
    "cut-chunked": (Truncate(framing="chunked"), "transient"),
    "cut-length": (Truncate(framing="length"), "transient"),
    "cut-close": (Truncate(framing="close"), "transient"),
    "cut-ended": (Truncate(framing="ended"), "transient"),
    "hang": (Hang(), "transient"),
    "stall": (Stall(), "transient"),
    "blanks": (HeartbeatOnly(interval_s=0.1), "transient"),
    "trickle": (Trickle(size=1, interval_s=0.2), "transient"),
    "json": (InvalidResponse(kind="json"), "transient"),
    "html": (InvalidResponse(kind="html"), "transient"),
    "nothing": (InvalidResponse(kind="nothing"), "transient"),
    "utf8": (InvalidResponse(kind="utf8"), "transient"),
    "list": (InvalidResponse(kind="list"), "transient"),
    "error-200": (ErrorEvent(), "transient"),
    "huge-head": (Huge(part="head", size=2 << 20), "transient"),
    "500": (StatusFault(status=500), "transient"),
    "502": (StatusFault(status=502), "transient"),
    "503": (StatusFault(status=503, retry_after="0.05"), "transient"),
    "529": (StatusFault(status=529), "transient"),
    "408": (StatusFault(status=408), "transient"),
    "429": (StatusFault(status=429), "refused"),
    "425": (StatusFault(status=425), "refused"),
    "429-nan": (StatusFault(status=429, retry_after="NaN"), "refused"),
    "429-soon": (StatusFault(status=429, retry_after="soon"), "refused"),
    "429-past": (StatusFault(status=429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"), "refused"),
    "429-stop": (StatusFault(status=429, retry_after="-1"), "final"),
    "503-stop": (StatusFault(status=503, headers=(("x-should-retry", "false"),)), "final"),
    "503-beyond": (StatusFault(status=503, retry_after="1e9"), "elsewhere"),
    "400": (StatusFault(status=400), "final"),
    "401": (StatusFault(status=401), "final"),
    "404": (StatusFault(status=404), "final"),
    "422": (StatusFault(status=422), "final"),
    "redirect": (StatusFault(status=307, headers=(("location", "http://127.0.0.1:9/"),)), "final"),
    "flipped": (Corrupt(), "fine"),
    "slow": (Ok(first_token_delay_s=0.3, token_interval_s=0.05), "fine"),
    "no-http": (Raw(data=b"SSH-2.0-OpenSSH_9.6\r\n"), "transient"),
    "http-0.9": (Raw(data=b"<html>hello</html>"), "transient"),
    "two-lengths": (
        Raw(data=JSON_HEAD + b"content-length: 2\r\ncontent-length: 9\r\n\r\n{}"),
        "transient",
    ),
    "length-and-chunks": (
        Raw(data=JSON_HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        "transient",
    ),
    "bad-chunk": (Raw(data=JSON_HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n"), "transient"),
    "switching": (
        Raw(data=b"HTTP/1.1 101 Switching Protocols\r\n\r\n", connection_action="hold"),
        "transient",
    ),
    "interim-flood": (
        Raw(data=b"HTTP/1.1 103 Early Hints\r\n\r\n" * 999, connection_action="hold"),
        "transient",
    ),
    "gzip": (
        # Keeps the reusable connection: a close would cost the next request an attempt.
        Raw(
            data=JSON_HEAD + b"content-encoding: br\r\ncontent-length: 4\r\n\r\n\x1b\x00\x00\x00",
            connection_action="keep",
        ),
        "transient",
    ),
}
STREAMED: dict[str, tuple[InjectedFault, Kind]] = {
    "cut-ended-all": (Truncate(tokens=99, framing="ended"), "partial"),
    "cut-close-all": (Truncate(tokens=99, framing="close"), "partial"),
    "error-3-bare": (ErrorEvent(tokens=3, include_done=False), "partial"),
    "huge-event": (Huge(part="event", size=20 << 20), "transient"),
}
for _tokens, _kind in ((0, "transient"), (3, "partial")):
    _faults: dict[str, InjectedFault] = {
        "reset": Reset(tokens=_tokens),
        "cut-chunked": Truncate(tokens=_tokens, framing="chunked"),
        "cut-ended": Truncate(tokens=_tokens, framing="ended"),
        "cut-length": Truncate(tokens=_tokens, framing="length"),
        "cut-close": Truncate(tokens=_tokens, framing="close"),
        "stall": Stall(tokens=_tokens),
        "comments": HeartbeatOnly(tokens=_tokens, kind="comment"),
        "empty-deltas": HeartbeatOnly(tokens=_tokens, kind="event"),
        "both-beats": HeartbeatOnly(tokens=_tokens, kind="both"),
        "bad-json": InvalidResponse(tokens=_tokens, kind="json"),
        "bad-event": InvalidResponse(tokens=_tokens, kind="event"),
        "bad-utf8": InvalidResponse(tokens=_tokens, kind="utf8"),
        "bad-list": InvalidResponse(tokens=_tokens, kind="list"),
        "error": ErrorEvent(tokens=_tokens),
    }
    STREAMED |= {f"{_name}-{_tokens}": (_fault, _kind) for _name, _fault in _faults.items()}
_ALIKE = (
    "reset",
    "hang",
    "html",
    "nothing",
    "500",
    "503",
    "429",
    "429-stop",
    "503-beyond",
    "400",
    "flipped",
    "slow",
    "no-http",
    "two-lengths",
    "huge-head",
)
"""Faults up to the head, which are equal for whole and streamed answers."""
STREAMED |= {name: WHOLE[name] for name in _ALIKE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request.

    Attributes:
        fault: the fault that the request meets; ``kind`` is its class.
        always: whether each attempt meets the fault; otherwise the second attempt is answered.
        effects: whether the endpoint must process the request at most once.
    """

    name: str
    api: str
    stream: bool
    fault: InjectedFault
    kind: Kind
    always: bool
    effects: bool

    @property
    def mark(self) -> str:
        """Return the case's id, which the request contains."""
        form = "stream" if self.stream else "whole"
        safe = "effects" if self.effects else "idempotent"
        return f"{self.name}/{self.api}/{form}/{'always' if self.always else 'once'}/{safe}"

    @property
    def repeats(self) -> bool:
        """Return whether a second attempt may follow the fault."""
        return self.kind == "refused" or (self.kind in ("transient", "elsewhere") and not self.effects)

    @property
    def attempts(self) -> int:
        """Return the required number of attempts, at most 3."""
        if not self.repeats:
            return 1
        return REPLICAS if self.kind == "elsewhere" or not self.always else 3

    @property
    def answered(self) -> bool:
        """Return whether the client must get the answer."""
        return self.kind == "fine" or (self.repeats and not self.always)


def cases() -> Iterator[Case]:
    """Return all cases: chat and messages with every fault, responses with effects, other APIs with some."""
    for stream, table in ((False, WHOLE), (True, STREAMED)):
        for n, (name, (fault, kind)) in enumerate(table.items()):
            apis = ["chat", "messages", "responses"]
            if n % 4 == 0 or kind == "final":
                apis += ["completions", *([] if stream else ["embeddings"])]
            for api in apis:
                for always in (False, True):
                    if api in ("chat", "responses") or always == bool(n % 2):
                        yield Case(
                            name=name,
                            api=api,
                            stream=stream,
                            fault=fault,
                            kind=kind,
                            always=always,
                            effects=api == "responses",
                        )


@dataclass(slots=True)
class Across:
    """Scripts by mark, with attempts counted over all backends that share the object."""

    table: Mapping[str, Sequence[InjectedFault]]
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, seen: RecordedRequest) -> InjectedFault:
        with self.lock:
            attempt = self.counts[seen.key]
            self.counts[seen.key] += 1
        faults = self.table.get(seen.key, (Ok(),))
        return faults[min(attempt, len(faults) - 1)]
