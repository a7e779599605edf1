"""Strict parser of HTTP/1.1 responses, one at a time (RFC 9112, 4 to 6), without access to sockets.

llhttp, under httptools, rejects bare LF, folded lines, Content-Length together with Transfer-Encoding,
repeated or malformed lengths, and control characters. The parser also rejects some input that llhttp
accepts: other transfer codings, codings in HTTP/1.0, other versions, a switch of protocols, and unbounded
heads.
"""

from __future__ import annotations

import re
from typing import Final

from agentguard.backends.base import Headers
from agentguard.backends.http.limits import HttpLimits
from agentguard.errors import MissingExtra

try:
    from httptools import HttpParserError, HttpResponseParser
except ImportError:  # pragma: no cover - only where the extra is missing
    raise MissingExtra("httptools", "serve") from None

CONNECTION_FIELDS: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Header fields of one connection, which are never forwarded."""
_MAX_INTERIM_RESPONSES: Final = 16
_MAX_FRAMING_RATIO: Final = 16  # maximum framing per body byte in small chunks: 1\r\nx\r\n
_TIMEOUT: Final = re.compile(rb"timeout=([0-9]{1,6})")
_FORWARDED_SPECIAL_FIELDS: Final = frozenset({b"content-type", b"content-encoding"})
_SPECIAL_FIELDS: Final = CONNECTION_FIELDS | _FORWARDED_SPECIAL_FIELDS | {b"content-length"}


class MalformedResponse(Exception):
    """A response cannot be parsed; the reason contains nothing of the response."""


class ResponseParser:
    """Parser of the current response.

    Attributes:
        has_head: True if the head is complete; the next five attributes are then set.
        status: HTTP status; interim responses are skipped.
        headers: headers in order with lower-case names, without connection headers and Content-Length.
        is_event_stream: True if the body is a stream of server-sent events.
        encoding: content coding in lower case; empty without a coding.
        is_streaming: True if the body is forwarded while it arrives; its reader bounds it.
        body: received parts of the body that were not taken yet.
        size: number of received body bytes.
        is_complete: True if the response is complete.
        ends_at_close: True if only the end of the connection ends the body, so truncation is undetectable.
        is_reusable: True if the connection may carry another request.
        keepalive_s: idle time after which the server closes the connection, as far as it is known.
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
        """Prepare for the response to a request.

        Args:
            bodiless: True if the request is a HEAD, whose response has no body.
            raw: True if a successful response is forwarded while it arrives, even without an event stream.
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
        """Parse data; return whether the response is complete.

        Raises:
            MalformedResponse: the data is invalid; do not feed more.
        """
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            if not self.is_complete:
                raise MalformedResponse(self._reason or "it is not an HTTP response") from None
            self.is_reusable = False  # the response is complete; the excess data is unsolicited
        if self._received_bytes > self._limits.max_header_bytes:
            self._check_size()
        return self.is_complete

    def _check_size(self) -> None:
        """Check the size of head and framing. Raises MalformedResponse."""
        max_bytes = self._limits.max_header_bytes
        if not self.has_head:
            raise MalformedResponse("its head is too large")
        if self._received_bytes - self.size > 2 * max_bytes + _MAX_FRAMING_RATIO * self.size:
            raise MalformedResponse("its chunks are mostly framing")

    def feed_eof(self) -> None:
        """Handle the end of the connection. Raises MalformedResponse if the response is incomplete."""
        if self.is_complete:
            return
        if not (self.has_head and self.ends_at_close):
            raise MalformedResponse("it is truncated")
        self.is_complete = True

    def take_body(self) -> bytes:
        """Return the body data received since the last call."""
        body = self.body
        if len(body) == 1:
            data = body[0]
            body.clear()
            return data
        self.body = []
        return b"".join(body)

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        """Reject a second response, which no request asked for."""
        if self.is_complete:
            self._reject("a second response follows it")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field; a trailer field is counted and dropped."""
        if self.has_head:
            self._trailer_bytes_left -= len(name) + len(value) + 4
            if self._trailer_bytes_left < 0:
                self._reject("its trailer is too large")
        else:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Process the complete head."""
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        if status < 200:
            self._interim_count += 1
            self._is_interim = True
            if status == 101 or self._interim_count > _MAX_INTERIM_RESPONSES:
                self._reject("it switches protocols, or is an interim response")
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
        """Store a part of the body."""
        if self._bodiless:
            self._reject("it has a body that is not permitted")
        self.size += len(data)
        if not self.is_streaming and self.size > self._limits.max_body_bytes:
            self._reject("its body is too large")
        self.body.append(data)

    def on_message_complete(self) -> None:
        """Mark the response as complete unless it is an interim one."""
        if not self._is_interim:
            self.is_complete = True

    def _parse_framing(self, fields: list[tuple[bytes, bytes]]) -> None:
        """Parse the fields that determine the end of the response; drop connection headers."""
        forwarded_fields: list[tuple[bytes, bytes]] = []
        special: dict[bytes, bytes] = {}
        for field in fields:
            name = field[0]
            if name in _SPECIAL_FIELDS:
                special[name] = special[name] + b"," + field[1] if name in special else field[1]
                if name not in _FORWARDED_SPECIAL_FIELDS and not (
                    self._bodiless and name == b"content-length"
                ):
                    continue
            forwarded_fields.append(field)
        if b"content-type" in special:
            self.is_event_stream = special[b"content-type"][:17].lower() == b"text/event-stream"
        if b"content-encoding" in special:
            coding = special[b"content-encoding"].strip().lower()
            self.encoding = b"" if coding == b"identity" else coding
        self._determine_end(special.get(b"content-length", b""), special.get(b"transfer-encoding", b""))
        if b"keep-alive" in special:
            self._parse_keepalive(special[b"keep-alive"])
        if b"connection" in special:
            connection_options = special[b"connection"].lower()
            if connection_options not in (b"", b"keep-alive", b"close"):
                dropped_names = {word.strip() for word in connection_options.split(b",")}
                forwarded_fields = [field for field in forwarded_fields if field[0] not in dropped_names]
        self.headers = tuple(forwarded_fields)

    def _determine_end(self, length: bytes, codings: bytes) -> None:
        """Determine how the body ends (RFC 9112, 6.3)."""
        version = self._parser.get_http_version()
        if version != "1.1" and version != "1.0":
            self._reject("its HTTP version is not supported")
        if codings and (codings.strip().lower() != b"chunked" or length or version == "1.0"):
            self._reject("its transfer coding is not supported")
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
        match = _TIMEOUT.search(value)
        if match:  # one second less, since the server's clock runs while the request is in transit
            self.keepalive_s = min(self._limits.keepalive_timeout_s, max(0.0, int(match[1]) - 1.0))

    def _reject(self, reason: str) -> None:
        self._reason = reason
        raise MalformedResponse(reason)
