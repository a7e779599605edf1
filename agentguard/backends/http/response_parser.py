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

_MAX_INTERIM_RESPONSES: Final = 16
_MAX_FRAMING_RATIO: Final = 16  # what framing may cost a byte of a body in small chunks: 1\r\nx\r\n
_TIMEOUT: Final = re.compile(rb"timeout=([0-9]{1,6})")
_FORWARDED_SPECIAL_FIELDS: Final = frozenset({b"content-type", b"content-encoding"})
_SPECIAL_FIELDS: Final = CONNECTION_FIELDS | _FORWARDED_SPECIAL_FIELDS | {b"content-length"}


class MalformedResponse(Exception):
    """A response that can't be read on; the reason has nothing of its contents."""


class ResponseParser:
    """The response under way.

    Attributes:
        has_head: whether its head is there, and so the next five.
        status: of HTTP; interim ones are skipped.
        headers: in order, names in lower case, without those of the connection and without Content-Length.
        is_event_stream: whether its body is a stream of server-sent events.
        encoding: its content coding in lower case; empty if it has none.
        is_streaming: whether its body is handed out as it comes, and bounded by whoever takes it.
        body: what has come of its body and was not taken yet.
        size: length of all that has come of the body.
        is_complete: whether it is whole.
        ends_at_close: whether only the end of the connection ends it: then nobody knows if it is whole.
        is_reusable: whether the connection may carry another request.
        keepalive_s: how long the server keeps it, as far as it says.
    """

    __slots__ = (
        "_bodiless",
        "_fields",
        "_interim_count",
        "_is_interim",
        "_limits",
        "_parser",
        "_raw",
        "_reason",
        "_received_bytes",
        "_trailer_bytes_left",
        "body",
        "encoding",
        "ends_at_close",
        "has_head",
        "headers",
        "is_complete",
        "is_event_stream",
        "is_reusable",
        "is_streaming",
        "keepalive_s",
        "size",
        "status",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._parser = HttpResponseParser(self)
        self.keepalive_s = limits.keepalive_timeout_s
        self.reset()

    def reset(self, *, bodiless: bool = False, raw: bool = False) -> None:
        """Get ready for the response to a request.

        Args:
            bodiless: whether it has no body, whatever its head says: the request was a HEAD.
            raw: whether a successful answer is handed out as it comes, even if it is no stream of events.
        """
        self._bodiless, self._raw = bodiless, raw
        self._fields: list[tuple[bytes, bytes]] = []
        self._trailer_bytes_left, self._received_bytes, self._interim_count = (
            self._limits.max_header_bytes,
            0,
            0,
        )
        self._is_interim, self._reason = False, ""
        self.has_head = self.is_complete = self.ends_at_close = self.is_reusable = False
        self.is_event_stream = self.is_streaming = False
        self.status, self.size, self.encoding = 0, 0, b""
        self.headers: Headers = ()
        self.body: list[bytes] = []

    def feed(self, data: bytes) -> bool:
        """Read on; returns whether the response is whole. Raises Malformed; no more may be fed then."""
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            if not self.is_complete:
                raise MalformedResponse(self._reason or "it is no HTTP response") from None
            self.is_reusable = False  # it was whole; what came after it belongs to nobody
        if self._received_bytes > self._limits.max_header_bytes:
            self._check_size()
        return self.is_complete

    def _check_size(self) -> None:
        """See whether what came is more than a head and a body may take. Raises Malformed."""
        most = self._limits.max_header_bytes
        if not self.has_head:
            raise MalformedResponse("its head is too large")
        if self._received_bytes - self.size > 2 * most + _MAX_FRAMING_RATIO * self.size:
            raise MalformedResponse("its chunks are mostly framing")

    def feed_eof(self) -> None:
        """The connection ended. Raises Malformed if the response had not."""
        if self.is_complete:
            return
        if not (self.has_head and self.ends_at_close):
            raise MalformedResponse("it broke off")
        self.is_complete = True

    def take_body(self) -> bytes:
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
        if self.is_complete:
            self._reject("a second response follows it")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head, or of the trailer, which is read and left out."""
        if self.has_head:
            self._trailer_bytes_left -= len(name) + len(value) + 4
            if self._trailer_bytes_left < 0:
                self._reject("its trailer is too large")
        else:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        if status < 200:
            self._interim_count += 1
            self._is_interim = True
            if status == 101 or self._interim_count > _MAX_INTERIM_RESPONSES:
                self._reject("it switches protocols, or only announces an answer")
            return
        limits = self._limits
        if len(fields) > limits.max_headers:
            self._reject("its head has too many fields")
        if (
            self._received_bytes > limits.max_header_bytes
            and sum(len(n) + len(v) + 4 for n, v in fields) > limits.max_header_bytes
        ):
            self._reject("its head is too large")
        self.status, self.has_head, self._is_interim = status, True, False
        self._parse_framing(fields)
        self.is_streaming = (self.is_event_stream or self._raw) and status < 400
        if self._bodiless:
            self.is_complete, self.is_reusable = True, False

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._bodiless:
            self._reject("it has a body where none may be")
        self.size += len(data)
        if not self.is_streaming and self.size > self._limits.max_body_bytes:
            self._reject("its body is too large")
        self.body.append(data)

    def on_message_complete(self) -> None:
        """The response is whole, or was an interim one."""
        if not self._is_interim:
            self.is_complete = True

    def _parse_framing(self, fields: list[tuple[bytes, bytes]]) -> None:
        """Look at the fields that say where the response ends, and leave those of the connection out."""
        kept: list[tuple[bytes, bytes]] = []
        special: dict[bytes, bytes] = {}
        for field in fields:
            name = field[0]
            if name in _SPECIAL_FIELDS:
                special[name] = special[name] + b"," + field[1] if name in special else field[1]
                if name not in _FORWARDED_SPECIAL_FIELDS and not (
                    self._bodiless and name == b"content-length"
                ):
                    continue
            kept.append(field)
        if b"content-type" in special:
            self.is_event_stream = special[b"content-type"][:17].lower() == b"text/event-stream"
        if b"content-encoding" in special:
            coding = special[b"content-encoding"].strip().lower()
            self.encoding = b"" if coding == b"identity" else coding
        self._determine_end(special.get(b"content-length", b""), special.get(b"transfer-encoding", b""))
        if b"keep-alive" in special:
            self._parse_keepalive(special[b"keep-alive"])
        if b"connection" in special:
            named = special[b"connection"].lower()
            if named not in (b"", b"keep-alive", b"close"):
                drop = {word.strip() for word in named.split(b",")}
                kept = [field for field in kept if field[0] not in drop]
        self.headers = tuple(kept)

    def _determine_end(self, length: bytes, codings: bytes) -> None:
        """How the body ends (RFC 9112, 6.3)."""
        version = self._parser.get_http_version()
        if version != "1.1" and version != "1.0":
            self._reject("its version of HTTP is another")
        if codings and (codings.strip().lower() != b"chunked" or length or version == "1.0"):
            self._reject("its transfer coding is none that can be read safely")
        if (
            length
            and not self.is_event_stream
            and int(length) > self._limits.max_body_bytes
            and not self._raw
        ):
            self._reject("its body is too large")
        bodiless = self._bodiless or self.status in (204, 304)
        self.ends_at_close = not (length or codings or bodiless)
        self.is_reusable = not self.ends_at_close and self._parser.should_keep_alive()

    def _parse_keepalive(self, value: bytes) -> None:
        found = _TIMEOUT.search(value)
        if found:  # a second less: the request is on its way while the server's clock runs
            self.keepalive_s = min(self._limits.keepalive_timeout_s, max(0.0, int(found[1]) - 1.0))

    def _reject(self, reason: str) -> None:
        self._reason = reason
        raise MalformedResponse(reason)
