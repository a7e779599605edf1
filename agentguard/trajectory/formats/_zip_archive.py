"""Members of zip archives, with Zstandard (method 93), which Python 3.11's zipfile does not decompress."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from agentguard.errors import FormatError
from agentguard.trajectory.formats._stream_reader import MAX_RECORD_BYTES

_ZSTD_METHOD = 93
_LOCAL_HEADER = struct.Struct("<26xHH")


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the content of a member.

    Raises:
        FormatError: the member is damaged, has more than 256 MiB, or needs a package that is not installed.
    """
    try:
        return b"".join(_iter_chunks(archive, info))
    except (OSError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError(f"member {info.filename!r:.80} is damaged: {error}") from None


def _iter_chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    size = 0
    for chunk in (
        _iter_zstd_chunks(archive, info) if info.compress_type == _ZSTD_METHOD else _read(archive, info)
    ):
        size += len(chunk)
        if size > MAX_RECORD_BYTES:
            raise FormatError(f"member {info.filename!r:.80} has more than {MAX_RECORD_BYTES >> 20} MiB")
        yield chunk


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(info) as stream:
        while chunk := stream.read(1 << 20):
            yield chunk


def _iter_zstd_chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError:
        reason = "the archive is compressed with Zstandard"
        raise FormatError(reason, hint="pip install zstandard") from None
    stream: BinaryIO = archive.fp  # type: ignore[assignment]
    try:
        stream.seek(info.header_offset)
        stream.seek(sum(_LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))), 1)
        compressed = stream.read(info.compress_size)
        reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
        while chunk := reader.read(1 << 20):
            yield chunk
    except (struct.error, zstandard.ZstdError) as error:
        raise zipfile.BadZipFile(str(error)) from None
