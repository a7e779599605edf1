"""Where records come from: files and streams, cut into JSON values or text without holding the whole of them.

A JSON array is cut at its top-level commas by a scanner that knows only strings and brackets, and each
element is parsed by itself. So memory is bounded by the largest element, and one that is not valid JSON is
reported while the others are still read, which an event parser (ijson) cannot do: it stops at the first
fault.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TextIO

from agentguard.errors import FormatError
from agentguard.trajectory.formats._json import MAX_LOG_DEPTH, loads

CHUNK = 1 << 18
MAX_RECORD = 1 << 28
_BOM = b"\xef\xbb\xbf"
_STRUCTURE = re.compile(rb'["\[\]{},]')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OPEN, _CLOSE = b"[{", b"]}"
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


@dataclass(frozen=True, slots=True)
class Item:
    """One JSON value of a source, or why it is none; ``position`` counts from 0."""

    position: int
    value: Any = None
    error: FormatError | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """What a source holds: one document, a sequence of values, or text."""

    kind: Literal["document", "sequence", "text"]
    items: Iterator[Item]


class Reader:
    """Reads bytes of a binary or text stream in chunks and can look ahead."""

    def __init__(self, stream: BinaryIO | TextIO) -> None:
        self._stream = stream
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer at the end, without taking them."""
        parts, total = [self._ahead], len(self._ahead)
        while total < size and (more := self._read(max(size, CHUNK))):
            parts.append(more)
            total += len(more)
        self._ahead = b"".join(parts)
        return self._ahead[:size]

    def take(self) -> bytes:
        """The next chunk; empty at the end."""
        if self._ahead:
            taken, self._ahead = self._ahead, b""
            return taken
        return self._read(CHUNK)

    def skip(self, size: int) -> None:
        """Drop bytes that were looked at."""
        self._ahead = self._ahead[size:]

    def all(self) -> bytes:
        """Everything that is left, up to `MAX_RECORD` bytes; raises FormatError beyond."""
        parts = [self.take()]
        total = len(parts[0])
        while part := self._read(CHUNK):
            parts.append(part)
            total += len(part)
            if total > MAX_RECORD:
                raise _too_big()
        return b"".join(parts)

    def _read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except UnicodeDecodeError:
            raise FormatError("not UTF-8 text", hint="save it as UTF-8") from None
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise FormatError(f"cannot be read: {type(error).__name__}") from None
        return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data or b"")


def content(stream: BinaryIO | TextIO) -> Content:
    """Say what a stream holds by its beginning. Raises FormatError where it is nothing readable."""
    reader = Reader(stream)
    head = reader.peek(CHUNK)
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            raise FormatError(f"compressed ({name})", hint="decompress it first")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FormatError("UTF-16 text", hint="save it as UTF-8")
    if head.startswith(_BOM):
        reader.skip(len(_BOM))
    start = _skip_blank(reader)
    if not start:
        raise FormatError("empty")
    if start not in (b"{", b"["):
        return Content("text", _text(reader))
    if _is_lines(reader):
        return Content("sequence", _lines(reader))
    if start == b"[":
        return Content("sequence", _array(reader))
    return Content("document", _document(reader))


def _skip_blank(reader: Reader) -> bytes:
    while head := reader.peek(CHUNK):
        if rest := head.lstrip():
            reader.skip(len(head) - len(rest))
            return rest[:1]
        reader.skip(len(head))
    return b""


def _is_lines(reader: Reader) -> bool:
    """Whether the stream is JSON Lines: its first line is a whole value and more lines follow.

    The first line itself may be the broken one. Then, of a stream that begins with an object, the next lines
    vote, unless the whole is one document after all: documents, too, have lines that are values of their own.
    """
    size = CHUNK
    while b"\n" not in (head := reader.peek(size)) and len(head) == size < MAX_RECORD:
        if head.startswith(b"["):
            return False  # An array that long is cut into its elements, not read whole.
        size *= 2
    first, *others = head.split(b"\n")
    if not b"".join(others).strip():
        return False
    if _parses(first):
        return True
    others = [line for line in others[: -1 if len(head) == size else None] if line.strip()][:20]
    if head.startswith(b"[") or not any(_parses(line) for line in others):
        return False
    return not _parses(reader.peek(MAX_RECORD))


def _parses(line: bytes) -> bool:
    if line[:1] not in (b"{", b"[") or line.rstrip()[-1:] not in (b"}", b"]"):
        return False
    try:
        return isinstance(loads(line), dict | list)
    except FormatError as error:
        return "deeper" in error.reason


def _document(reader: Reader) -> Iterator[Item]:
    yield _item(0, reader.all())


def _text(reader: Reader) -> Iterator[Item]:
    data = reader.all()
    if b"\0" in data:
        raise FormatError("neither JSON nor text, but binary data")
    try:
        yield Item(0, data.decode())
    except UnicodeDecodeError as error:
        raise FormatError(f"neither JSON nor UTF-8 text (byte {error.start})") from None


def _lines(reader: Reader) -> Iterator[Item]:
    position, parts, size = 0, [b""], 0
    while chunk := reader.take():
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            parts.append(line)
            if (data := b"".join(parts)).strip():
                yield _item(position, data)
                position += 1
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_RECORD:
            raise _too_big()
    if (data := b"".join(parts)).strip():
        yield _item(position, data)


def _array(reader: Reader) -> Iterator[Item]:
    cutter = _Cutter()
    position = 0
    while chunk := reader.take():
        for data in cutter.feed(chunk):
            yield _item(position, data)
            position += 1
        if cutter.size > MAX_RECORD:
            raise _too_big()
    rest = cutter.rest.strip()
    if not cutter.closed:
        yield Item(position, error=FormatError("the file ends inside the array", hint="was it cut off?"))
    elif rest:
        yield Item(position, error=FormatError("more text after the end of the array"))


class _Cutter:
    """Cuts a JSON array, fed in chunks, at its top-level commas."""

    def __init__(self) -> None:
        self.closed = False
        self.size = 0
        self._parts: list[bytes] = []
        self._depth = 0
        self._in_string = False
        self._carry = b""
        self._any = False

    @property
    def rest(self) -> bytes:
        return b"".join(self._parts) + self._carry

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        data, self._carry = self._carry + chunk, b""
        begin = at = 0
        while at < len(data) and not self.closed:
            if self._in_string:
                at = self._string(data, at)
                continue
            if (match := _STRUCTURE.search(data, at)) is None:
                at = len(data)
                break
            at = match.end()
            cut = self._mark(match[0])
            if cut == "begin":
                begin = at
            elif cut and (element := self._cut(data[begin : at - 1])) is not None:
                yield element
            if cut:
                begin = at
        kept = data[begin : len(data) - len(self._carry)]
        self._parts.append(kept)
        self.size += len(kept)

    def _string(self, data: bytes, at: int) -> int:
        match = _STRING.match(data, at)
        end = match.end() if match else at
        if end < len(data) and data[end] == 0x22:
            self._in_string = False
            return end + 1
        # A backslash at the very end escapes the first byte of the next chunk: keep it for then.
        self._carry = data[end:]
        return len(data)

    def _mark(self, token: bytes) -> str:
        """Follow one structural byte; says whether an element begins or ends after it."""
        if token == b'"':
            self._in_string = True
        elif token in _OPEN:
            self._depth += 1
            return "begin" if self._depth == 1 else ""
        elif token in _CLOSE:
            self._depth -= 1
            self.closed = self._depth == 0
            return "last" if self.closed else ""
        elif self._depth == 1:
            return "next"
        return ""

    def _cut(self, tail: bytes) -> bytes | None:
        data = b"".join(self._parts) + tail
        self._parts, self.size = [], 0
        if self.closed and not self._any and not data.strip():
            return None
        self._any = True
        return data


def _item(position: int, data: bytes) -> Item:
    try:
        return Item(position, loads(data, depth=MAX_LOG_DEPTH))
    except FormatError as error:
        return Item(position, error=error)


def _too_big() -> FormatError:
    return FormatError(f"a record of more than {MAX_RECORD >> 20} MiB", hint="split it, or use JSON Lines")
