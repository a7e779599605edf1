"""Reads responses off a connection, strictly, one at a time (RFC 9112, 4 to 6); knows nothing of sockets.

llhttp, under httptools, refuses bare LF, folded lines, Content-Length beside Transfer-Encoding, repeated or
odd lengths, and control characters. What it lets pass is refused here: other transfer codings, codings in
HTTP/1.0, other versions, a switch of protocols, and heads without a bound.
"""

from __future__ import annotations

import re
from typing import Final

from agentguard.backends.base import Headers
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.request_head import CONNECTION_FIELDS
from agentguard.errors import MissingExtra

try:
    from httptools import HttpParserError, HttpResponseParser
except ImportError:  # pragma: no cover - only where the extra is missing
    raise MissingExtra("httptools", "serve") from None

_INTERIMS: Final = 16
_CHUNK_BYTES: Final = 16  # what framing may cost a byte of a body in small chunks: 1\r\nx\r\n
_TIMEOUT: Final = re.compile(rb"timeout=([0-9]{1,6})")
_KEPT: Final = frozenset({b"content-type", b"content-encoding"})
_SPECIAL: Final = CONNECTION_FIELDS | _KEPT | {b"content-length"}


class Malformed(Exception):
    """A response that can't be read on; the reason has nothing of its contents."""


class ResponseParser:
    """The response under way.

    Attributes:
        head: whether its head is there, and so the next five.
        status: of HTTP; interim ones are skipped.
        headers: in order, names in lower case, without those of the connection and without Content-Length.
        events: whether its body is a stream of server-sent events.
        encoding: its content coding in lower case; empty if it has none.
        streaming: whether its body is handed out as it comes, and bounded by whoever takes it.
        body: what has come of its body and was not taken yet.
        size: length of all that has come of the body.
        complete: whether it is whole.
        until_close: whether only the end of the connection ends it: then nobody knows if it is whole.
        reusable: whether the connection may carry another request.
        keep_s: how long the server keeps it, as far as it says.
    """

    __slots__ = (
        "_bodiless",
        "_fields",
        "_interim",
        "_interims",
        "_limits",
        "_parser",
        "_raw",
        "_reason",
        "_room",
        "_seen",
        "body",
        "complete",
        "encoding",
        "events",
        "head",
        "headers",
        "keep_s",
        "reusable",
        "size",
        "status",
        "streaming",
        "until_close",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._parser = HttpResponseParser(self)
        self.keep_s = limits.idle_s
        self.begin()

    def begin(self, *, bodiless: bool = False, raw: bool = False) -> None:
        """Get ready for the response to a request.

        Args:
            bodiless: whether it has no body, whatever its head says: the request was a HEAD.
            raw: whether a successful answer is handed out as it comes, even if it is no stream of events.
        """
        self._bodiless, self._raw = bodiless, raw
        self._fields: list[tuple[bytes, bytes]] = []
        self._room, self._seen, self._interims = self._limits.head_bytes, 0, 0
        self._interim, self._reason = False, ""
        self.head = self.complete = self.until_close = self.reusable = False
        self.events = self.streaming = False
        self.status, self.size, self.encoding = 0, 0, b""
        self.headers: Headers = ()
        self.body: list[bytes] = []

    def feed(self, data: bytes) -> bool:
        """Read on; returns whether the response is whole. Raises Malformed; no more may be fed then."""
        self._seen += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            if not self.complete:
                raise Malformed(self._reason or "it is no HTTP response") from None
            self.reusable = False  # it was whole; what came after it belongs to nobody
        if self._seen > self._limits.head_bytes:
            self._weigh()
        return self.complete

    def _weigh(self) -> None:
        """See whether what came is more than a head and a body may take. Raises Malformed."""
        most = self._limits.head_bytes
        if not self.head:
            raise Malformed("its head is too large")
        if self._seen - self.size > 2 * most + _CHUNK_BYTES * self.size:
            raise Malformed("its chunks are mostly framing")

    def end(self) -> None:
        """The connection ended. Raises Malformed if the response had not."""
        if self.complete:
            return
        if not (self.head and self.until_close):
            raise Malformed("it broke off")
        self.complete = True

    def take(self) -> bytes:
        """What has come of the body since the last time."""
        body = self.body
        if len(body) == 1:
            data = body[0]
            body.clear()
            return data
        self.body = []
        return b"".join(body)

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A response begins: the one that was asked for, or one after it, which was not."""
        if self.complete:
            self._refuse("a second response follows it")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head, or of the trailer, which is read and left out."""
        if self.head:
            self._room -= len(name) + len(value) + 4
            if self._room < 0:
                self._refuse("its trailer is too large")
        else:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        if status < 200:
            self._interims += 1
            self._interim = True
            if status == 101 or self._interims > _INTERIMS:
                self._refuse("it switches protocols, or only announces an answer")
            return
        limits = self._limits
        if len(fields) > limits.head_fields:
            self._refuse("its head has too many fields")
        if self._seen > limits.head_bytes and sum(len(n) + len(v) + 4 for n, v in fields) > limits.head_bytes:
            self._refuse("its head is too large")
        self.status, self.head, self._interim = status, True, False
        self._framing(fields)
        self.streaming = (self.events or self._raw) and status < 400
        if self._bodiless:
            self.complete, self.reusable = True, False

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._bodiless:
            self._refuse("it has a body where none may be")
        self.size += len(data)
        if not self.streaming and self.size > self._limits.body_bytes:
            self._refuse("its body is too large")
        self.body.append(data)

    def on_message_complete(self) -> None:
        """The response is whole, or was an interim one."""
        if not self._interim:
            self.complete = True

    def _framing(self, fields: list[tuple[bytes, bytes]]) -> None:
        """Look at the fields that say where the response ends, and leave those of the connection out."""
        kept: list[tuple[bytes, bytes]] = []
        special: dict[bytes, bytes] = {}
        for field in fields:
            name = field[0]
            if name in _SPECIAL:
                special[name] = special[name] + b"," + field[1] if name in special else field[1]
                if name not in _KEPT and not (self._bodiless and name == b"content-length"):
                    continue
            kept.append(field)
        if b"content-type" in special:
            self.events = special[b"content-type"][:17].lower() == b"text/event-stream"
        if b"content-encoding" in special:
            coding = special[b"content-encoding"].strip().lower()
            self.encoding = b"" if coding == b"identity" else coding
        self._bounds(special.get(b"content-length", b""), special.get(b"transfer-encoding", b""))
        if b"keep-alive" in special:
            self._kept_for(special[b"keep-alive"])
        if b"connection" in special:
            named = special[b"connection"].lower()
            if named not in (b"", b"keep-alive", b"close"):
                drop = {word.strip() for word in named.split(b",")}
                kept = [field for field in kept if field[0] not in drop]
        self.headers = tuple(kept)

    def _bounds(self, length: bytes, codings: bytes) -> None:
        """How the body ends (RFC 9112, 6.3)."""
        version = self._parser.get_http_version()
        if version != "1.1" and version != "1.0":
            self._refuse("its version of HTTP is another")
        if codings and (codings.strip().lower() != b"chunked" or length or version == "1.0"):
            self._refuse("its transfer coding is none that can be read safely")
        if length and not self.events and int(length) > self._limits.body_bytes and not self._raw:
            self._refuse("its body is too large")
        bodiless = self._bodiless or self.status in (204, 304)
        self.until_close = not (length or codings or bodiless)
        self.reusable = not self.until_close and self._parser.should_keep_alive()

    def _kept_for(self, value: bytes) -> None:
        found = _TIMEOUT.search(value)
        if found:  # a second less: the request is on its way while the server's clock runs
            self.keep_s = min(self._limits.idle_s, max(0.0, int(found[1]) - 1.0))

    def _refuse(self, reason: str) -> None:
        self._reason = reason
        raise Malformed(reason)
