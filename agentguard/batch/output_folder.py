"""Output folder of a batch job: parts of the output table, dead letters and the manifest.

- One chunk is one part, ``<table>/[day=…/]<file>-<index>-<digest>.parquet``. The part is the commit of the
  chunk: it is written after the dead letters, and with one rename or one upload. So a kill at any point loses
  and doubles no row.
- A part of a chunk with retryable failures ends with ``.retry.parquet``. The next job processes that chunk
  again and replaces the part.
- The comparison of runs replaces parts in the same way; see `agentguard.batch.run_comparison`.
- A part of an earlier version of a chunk is removed after the new part is written.
- ``manifest.json`` has the fingerprint of all that changes results. A job with another fingerprint is
  refused.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import orjson

from agentguard._lazy import import_extra
from agentguard.batch.chunks import Chunk, resolve_file_system
from agentguard.batch.output_table import OutputTable
from agentguard.batch.processor import ChunkResult, DeadLetter
from agentguard.errors import ConfigError

DEAD_LETTERS: Final = "dead_letters"
MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 2

_PART_PATTERN = re.compile(
    r"(?P<slot>[0-9a-f]{16}-\d{6})-(?P<digest>[0-9a-f]{16})(?P<retry>\.retry)?\.parquet$"
)


class BatchOutput:
    """Output folder on any file system.

    Args:
        url: path or URL of the folder.
        fingerprint: identity of all that changes results.
        facts: other facts for the manifest, such as versions and options.
        table: table of the operation.

    Raises:
        ConfigError: the folder has results of another fingerprint, or files of something else.
    """

    def __init__(self, url: str, fingerprint: str, facts: Mapping[str, Any], table: OutputTable) -> None:
        self._system, self._root = resolve_file_system(url)
        self._table, self._schema = table, table.build_arrow_schema()
        self._parquet = import_extra("pyarrow.parquet", "batch")
        self._arrow = import_extra("pyarrow", "batch")
        self._check_manifest(url, fingerprint, facts)
        self._parts = self._list_parts()

    def is_done(self, chunk: Chunk) -> bool:
        """Return True if the chunk has a part with its digest and without retryable failures."""
        return f"{chunk.digest}.parquet" in self._parts.get(build_slot(chunk), {})

    def write(self, chunk: Chunk, result: ChunkResult) -> None:
        """Write the result of a chunk; replace earlier parts of that chunk."""
        slot = build_slot(chunk)
        self._write_dead_letters(slot, result.dead_letters)
        ending = f"{chunk.digest}{'.retry' if result.is_retryable else ''}.parquet"
        path = self._join(self._table.folder, chunk.file.partition, f"{slot}-{ending}")
        self._write_part(path, result.rows)
        former = self._parts.get(slot, {})
        self._parts[slot] = {ending: path}
        for name, old_path in former.items():
            if name != ending:
                self._system.rm_file(old_path)

    def read_rows(self, slot: str) -> list[dict[str, Any]]:
        """Return the rows of a chunk; none if it has no part."""
        for path in self._parts.get(slot, {}).values():
            with self._system.open(path, "rb") as stream:
                rows: list[dict[str, Any]] = self._parquet.ParquetFile(stream).read().to_pylist()
                return rows
        return []

    def replace_rows(self, slot: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace the rows of a chunk that has a part."""
        for path in self._parts[slot].values():
            self._write_part(path, rows)

    def _check_manifest(self, url: str, fingerprint: str, facts: Mapping[str, Any]) -> None:
        path = self._join(MANIFEST)
        manifest = {
            "version": MANIFEST_VERSION,
            "fingerprint": fingerprint,
            "columns": self._table.columns,
            **facts,
        }
        if not self._system.exists(path):
            if self._system.exists(self._root) and self._system.ls(self._root):
                raise ConfigError(f"{url} has files and no {MANIFEST}: name an empty folder")
            self._write_file(path, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
            return
        try:
            stored = orjson.loads(self._system.cat_file(path))
        except ValueError:
            raise ConfigError(f"{url}/{MANIFEST} is not valid JSON: name another folder") from None
        known = stored if isinstance(stored, dict) else {}
        if (known.get("version"), known.get("fingerprint")) != (MANIFEST_VERSION, fingerprint):
            changed = list(_list_differences(known, manifest))
            differences = f" (different: {', '.join(changed)})" if changed else ""
            raise ConfigError(
                f"{url} has results of another configuration{differences}: name another folder, "
                "or repeat the job with the former configuration"
            )

    def _list_parts(self) -> dict[str, dict[str, str]]:
        """Return slot to the endings and paths of its parts; remove all but the newest part of a slot.

        A kill between the write of a new part and the removal of the former one leaves both.
        """
        parts: dict[str, dict[str, tuple[Any, str]]] = {}
        folder = self._join(self._table.folder)
        found = self._system.find(folder, detail=True) if self._system.exists(folder) else {}
        for path, info in found.items():
            if (match := _PART_PATTERN.search(path)) is not None:
                ending = f"{match['digest']}{match['retry'] or ''}.parquet"
                written = info.get("LastModified") or info.get("mtime") or info.get("created") or 0
                parts.setdefault(match["slot"], {})[ending] = (written, path)
        kept: dict[str, dict[str, str]] = {}
        for slot, endings in parts.items():
            newest = max(endings, key=lambda ending: (str(endings[ending][0]), ending))
            for ending, (_, path) in endings.items():
                if ending != newest:
                    self._system.rm_file(path)
            kept[slot] = {newest: endings[newest][1]}
        return kept

    def _write_dead_letters(self, slot: str, letters: Iterable[DeadLetter]) -> None:
        path = self._join(DEAD_LETTERS, f"{slot}.jsonl")
        lines = [
            orjson.dumps({"source": one.source, "record": one.record, "error": one.error, "data": one.data})
            for one in letters
        ]
        if lines:
            self._write_file(path, b"\n".join(lines) + b"\n")
        elif self._system.exists(path):
            self._system.rm_file(path)

    def _write_part(self, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        buffer = io.BytesIO()
        table = self._arrow.Table.from_pylist(rows, schema=self._schema)
        self._parquet.write_table(table, buffer, compression="zstd")
        self._write_file(path, buffer.getvalue())

    def _write_file(self, path: str, data: bytes) -> None:
        """Write a file so that a reader sees all of it or nothing."""
        if not _is_local(self._system):
            self._system.pipe_file(path, data)  # an upload to an object store is atomic
            return
        self._system.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        temporary = f"{path}.tmp"
        self._system.pipe_file(temporary, data)
        self._system.mv(temporary, path)

    def _join(self, *parts: str) -> str:
        return "/".join([self._root.rstrip("/"), *filter(None, parts)])


def _is_local(system: Any) -> bool:
    protocols = system.protocol if isinstance(system.protocol, tuple) else (system.protocol,)
    return "file" in protocols


def build_slot(chunk: Chunk) -> str:
    """Return the identity of a chunk without its contents."""
    name = hashlib.sha256(f"{chunk.file.partition}\0{chunk.file.name}".encode()).hexdigest()[:16]
    return f"{name}-{chunk.index:06d}"


def _list_differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of values that differ, as ``policy.localizer.method``, without the fingerprint."""
    for name in sorted({*stored, *current} - {"fingerprint"}):
        old, new = stored.get(name), current.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from (f"{name}.{inner}" for inner in _list_differences(old, new))
        elif old != new:
            yield name
