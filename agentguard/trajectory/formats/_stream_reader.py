"""Reader of files and streams as JSON values or text, in bounded memory.

A scanner of strings and brackets splits a JSON array at its top-level commas. Each element is parsed
separately, so the largest element bounds the memory. The reader reports an invalid element and reads the
others, whereas an event parser such as ijson stops at the first error.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, TextIO

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import SourceItem
from agentguard.trajectory.safe_json import MAX_LOG_DEPTH, loads

CHUNK_BYTES = 1 << 18
MAX_RECORD_BYTES = 1 << 28
_BOM = b"\xef\xbb\xbf"
_STRUCTURE_PATTERN = re.compile(rb'["\[\]{},]')
_STRING_PATTERN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BLANK_PATTERN = re.compile(r"\s*+")
_OPEN, _CLOSE = b"[{", b"]}"
_BINARY_MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}
_OPENING_LINES, _CLOSING_LINES = (b"{", b"["), (b"}", b"]")
_INDENTS = (b" ", b"\t")


@dataclass(frozen=True, slots=True)
class SourceContent:
    """Content of a source: one document, a sequence of values, or text."""

    kind: Literal["document", "sequence", "text"]
    items: Iterator[SourceItem]


class StreamReader:
    """Reader of a binary or text stream in chunks, with lookahead."""

    def __init__(self, stream: BinaryIO | TextIO) -> None:
        self._stream = stream
        self._buffer = b""

    def peek(self, size: int) -> bytes:
        """Return the next ``size`` bytes without consuming them; fewer at the end."""
        parts, total = [self._buffer], len(self._buffer)
        while total < size and (chunk := self._read_stream(max(size, CHUNK_BYTES))):
            parts.append(chunk)
            total += len(chunk)
        self._buffer = b"".join(parts)
        return self._buffer[:size]

    def read_chunk(self) -> bytes:
        """Return the next chunk; empty at the end."""
        if self._buffer:
            buffered_data, self._buffer = self._buffer, b""
            return buffered_data
        return self._read_stream(CHUNK_BYTES)

    def skip(self, size: int) -> None:
        """Skip bytes that `peek` returned."""
        self._buffer = self._buffer[size:]

    def read_all(self) -> bytes:
        """Return all remaining bytes, at most `MAX_RECORD_BYTES`; raises FormatError beyond."""
        parts = [self.read_chunk()]
        total = len(parts[0])
        while part := self._read_stream(CHUNK_BYTES):
            parts.append(part)
            total += len(part)
            if total > MAX_RECORD_BYTES:
                raise _build_size_error()
        return b"".join(parts)

    def _read_stream(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except UnicodeDecodeError:
            raise FormatError("not UTF-8 text", hint="save it as UTF-8") from None
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise FormatError(f"cannot be read: {type(error).__name__}") from None
        return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data or b"")


def detect_content(stream: BinaryIO | TextIO) -> SourceContent:
    """Detect the content of a stream by its beginning. Raises FormatError if it is not readable."""
    reader = StreamReader(stream)
    head = reader.peek(CHUNK_BYTES)
    for magic, name in _BINARY_MAGIC.items():
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
        return SourceContent("text", _read_text(reader))
    if _is_lines(reader):
        return SourceContent("sequence", _read_lines(reader))
    if start == b"[":
        return SourceContent("sequence", _read_array(reader))
    documents = _read_documents(reader)
    return SourceContent("document" if len(documents) == 1 else "sequence", iter(documents))


def _skip_blank(reader: StreamReader) -> bytes:
    while head := reader.peek(CHUNK_BYTES):
        if stripped_head := head.lstrip():
            reader.skip(len(head) - len(stripped_head))
            return stripped_head[:1]
        reader.skip(len(head))
    return b""


def _is_lines(reader: StreamReader) -> bool:
    """Return True if the stream is JSON Lines: its first line is a complete value and more lines follow.

    The first line may be invalid. If it begins with an object, the next lines decide, unless the stream is
    one document: the lines of a document can be values, too.
    """
    size = CHUNK_BYTES
    while b"\n" not in (head := reader.peek(size)) and len(head) == size < MAX_RECORD_BYTES:
        if head.startswith(b"["):
            return False  # An array of this length is split into its elements, not read at once.
        size *= 2
    first_line, *other_lines = head.split(b"\n")
    if not b"".join(other_lines).strip():
        return False
    if _is_json(first_line):
        return True
    other_lines = [line for line in other_lines[: -1 if len(head) == size else None] if line.strip()][:20]
    if head.startswith(b"[") or not any(_is_json(line) for line in other_lines):
        return False
    return not _is_json(reader.peek(MAX_RECORD_BYTES))


def _is_json(line: bytes) -> bool:
    if line[:1] not in (b"{", b"[") or line.rstrip()[-1:] not in (b"}", b"]"):
        return False
    try:
        return isinstance(loads(line), dict | list)
    except FormatError as error:
        return "deeper" in error.reason


def _read_documents(reader: StreamReader) -> list[SourceItem]:
    """Return the document, or the documents if several follow each other (console exporters)."""
    data = reader.read_all()
    document = _parse_item(0, data)
    if document.error is None:
        return [document]
    items: list[SourceItem] = []
    text, position, decoder = data.decode("utf-8", "replace"), 0, json.JSONDecoder()
    while position < len(text):
        try:
            end = decoder.raw_decode(text, position)[1]
        except (ValueError, RecursionError):
            break
        items.append(_parse_item(len(items), text[position:end].encode()))
        blank = _BLANK_PATTERN.match(text, end)
        position = blank.end() if blank else end
    if len(items) < 2:
        return [document]
    if position < len(text):
        items.append(_parse_item(len(items), text[position:].encode()))
    return items


def _read_text(reader: StreamReader) -> Iterator[SourceItem]:
    data = reader.read_all()
    if b"\0" in data:
        raise FormatError("binary data, neither JSON nor text")
    try:
        yield SourceItem(0, data.decode())
    except UnicodeDecodeError as error:
        raise FormatError(f"neither JSON nor UTF-8 text (byte {error.start})") from None


def _read_lines(reader: StreamReader) -> Iterator[SourceItem]:
    for position, data in enumerate(_join_indented_lines(_iter_lines(reader))):
        yield _parse_item(position, data)


def _join_indented_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines, with those of an indented document as one: programs append both to one log."""
    document: list[bytes] = []
    size = 0
    for line in lines:
        if document and line[:1] in _INDENTS:
            document.append(line)
            size += len(line)
            if size > MAX_RECORD_BYTES:
                raise _build_size_error()
            continue
        is_closed = bool(document) and line.rstrip() in _CLOSING_LINES
        if document:
            yield b"\n".join([*document, line] if is_closed else document)
            document = []
        if line.rstrip() in _OPENING_LINES:
            document, size = [line], len(line)
        elif not is_closed:
            yield line
    if document:
        yield b"\n".join(document)


def _iter_lines(reader: StreamReader) -> Iterator[bytes]:
    """Yield the lines that are not blank. Raises FormatError for a line above `MAX_RECORD_BYTES`."""
    parts, size = [b""], 0
    while chunk := reader.read_chunk():
        *complete_lines, remainder = chunk.split(b"\n")
        for line in complete_lines:
            parts.append(line)
            if (data := b"".join(parts)).strip():
                yield data
            parts, size = [], 0
        parts.append(remainder)
        size += len(remainder)
        if size > MAX_RECORD_BYTES:
            raise _build_size_error()
    if (data := b"".join(parts)).strip():
        yield data


def _read_array(reader: StreamReader) -> Iterator[SourceItem]:
    splitter = _ArraySplitter()
    position = 0
    while chunk := reader.read_chunk():
        for data in splitter.feed(chunk):
            yield _parse_item(position, data)
            position += 1
        if splitter.size > MAX_RECORD_BYTES:
            raise _build_size_error()
    remainder = splitter.remainder.strip()
    if not splitter.is_closed:
        yield SourceItem(
            position, error=FormatError("the file ends inside the array", hint="the file may be truncated")
        )
    elif remainder:
        yield SourceItem(position, error=FormatError("more text after the end of the array"))


class _ArraySplitter:
    """Splitter of a JSON array, fed in chunks, at its top-level commas."""

    def __init__(self) -> None:
        self.is_closed = False
        self.size = 0
        self._parts: list[bytes] = []
        self._depth = 0
        self._in_string = False
        self._carry = b""
        self._has_elements = False

    @property
    def remainder(self) -> bytes:
        return b"".join(self._parts) + self._carry

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        data, self._carry = self._carry + chunk, b""
        begin = position = 0
        while position < len(data) and not self.is_closed:
            if self._in_string:
                position = self._skip_string(data, position)
                continue
            if (match := _STRUCTURE_PATTERN.search(data, position)) is None:
                position = len(data)
                break
            position = match.end()
            boundary = self._apply_token(match[0])
            if boundary == "begin":
                begin = position
            elif boundary and (element := self._take_element(data[begin : position - 1])) is not None:
                yield element
            if boundary:
                begin = position
        unfinished_element = data[begin : len(data) - len(self._carry)]
        self._parts.append(unfinished_element)
        self.size += len(unfinished_element)

    def _skip_string(self, data: bytes, at: int) -> int:
        match = _STRING_PATTERN.match(data, at)
        end = match.end() if match else at
        if end < len(data) and data[end] == 0x22:
            self._in_string = False
            return end + 1
        # A backslash at the very end escapes the first byte of the next chunk, so defer it.
        self._carry = data[end:]
        return len(data)

    def _apply_token(self, token: bytes) -> str:
        """Process a structural byte; return "begin", "next" or "last" at an element's border, else ""."""
        if token == b'"':
            self._in_string = True
        elif token in _OPEN:
            self._depth += 1
            return "begin" if self._depth == 1 else ""
        elif token in _CLOSE:
            self._depth -= 1
            self.is_closed = self._depth == 0
            return "last" if self.is_closed else ""
        elif self._depth == 1:
            return "next"
        return ""

    def _take_element(self, tail: bytes) -> bytes | None:
        data = b"".join(self._parts) + tail
        self._parts, self.size = [], 0
        if self.is_closed and not self._has_elements and not data.strip():
            return None
        self._has_elements = True
        return data


def _parse_item(position: int, data: bytes) -> SourceItem:
    try:
        return SourceItem(position, loads(data, depth=MAX_LOG_DEPTH))
    except FormatError as error:
        return SourceItem(position, error=error)


def _build_size_error() -> FormatError:
    return FormatError(
        f"a record of more than {MAX_RECORD_BYTES >> 20} MiB", hint="split it, or use JSON Lines"
    )
