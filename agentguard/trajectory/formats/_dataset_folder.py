"""Files of a data set that belong together: one holds the runs, another how they were judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._stream_reader import SourceContent, SourceItem, detect_content


def iter_values(path: Path) -> Iterator[SourceItem]:
    """The values in a file: elements of an array, lines of JSON Lines, or one document.

    Raises FormatError, with the file, where it cannot be read at all.
    """
    try:
        with path.open("rb") as stream:
            found: SourceContent = detect_content(stream)
            yield from found.items
    except OSError as error:
        raise FormatError(f"cannot be opened: {error.strerror}", file=str(path)) from None
    except InputError as error:
        raise error.with_location(file=str(path)) from None


def read_document(path: Path) -> Any:
    """The one JSON document in a file. Raises FormatError, with the file, where there is not exactly one."""
    found = list(iter_values(path))
    if len(found) != 1:
        raise FormatError(f"expected one JSON document, found {len(found)} values", file=str(path))
    if found[0].error is not None:
        raise found[0].error.with_location(file=str(path))
    return found[0].value


def find_file(folder: Path, name: str) -> Path | None:
    """The file called ``name`` in a folder or up to two levels below it, the nearest and first by name."""
    for pattern in (name, f"*/{name}", f"*/*/{name}"):
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return found[0]
    return None
