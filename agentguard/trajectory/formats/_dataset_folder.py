"""Data sets of several files, such as one with runs and one with labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._stream_reader import SourceContent, detect_content
from agentguard.trajectory.formats.base import SourceItem


def iter_values(path: Path) -> Iterator[SourceItem]:
    """Yield the values in a file: elements of an array, lines of JSON Lines, or one document.

    Raises:
        FormatError: the file cannot be opened, or its content is neither JSON nor text; names the file.
    """
    try:
        with path.open("rb") as stream:
            content: SourceContent = detect_content(stream)
            yield from content.items
    except OSError as error:
        raise FormatError(f"cannot be opened: {error.strerror}", file=str(path)) from None
    except InputError as error:
        raise error.with_location(file=str(path)) from None


def read_document(path: Path) -> Any:
    """Return the single JSON document in a file. Raises FormatError, with the file, otherwise."""
    items = list(iter_values(path))
    if len(items) != 1:
        raise FormatError(f"expected one JSON document, found {len(items)} values", file=str(path))
    if items[0].error is not None:
        raise items[0].error.with_location(file=str(path))
    return items[0].value


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file ``name`` in a folder or up to two levels below it, the nearest and first by name."""
    for pattern in (name, f"*/{name}", f"*/*/{name}"):
        paths = sorted(path for path in folder.glob(pattern) if path.is_file())
        if paths:
            return paths[0]
    return None
