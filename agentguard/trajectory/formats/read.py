"""Read recorded runs of any format: files, folders, streams and parsed objects; see docs/formats.md."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._json import MAX_DEPTH, check_depth, clean
from agentguard.trajectory.formats._source import Content, Item, content
from agentguard.trajectory.formats.base import Broken, Format, Joins, Opens, formats
from agentguard.trajectory.model import Record, Trajectory

Source = str | os.PathLike[str] | BinaryIO | TextIO | dict[str, Any] | list[Any]

SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj", ".txt", ".json.gz", ".jsonl.gz")
_SAMPLE = 8
_NAME_IT = "name it with --format"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where values come from: the file for messages, the fallback id for runs."""

    file: str | None
    name: str


def read(source: Source, *, format: str | None = None) -> Iterator[Record | Broken]:
    """Yield the runs of ``source``, and a `Broken` with its place for each record that cannot be read.

    Args:
        source: path of a file, or of a folder whose files (and subfolders') are read in natural order; a
            binary or text stream; or parsed JSON (a dict or a list).
        format: name of the format; recognised per file where it is not given.

    Raises:
        UnknownPlugin: no format has that name.
        FormatError: the whole source cannot be used: not there, empty, or of no known format. A file of a
            folder that cannot be used is a Broken instead.
    """
    chosen = formats().get(format) if format is not None else None
    if isinstance(source, dict | list):
        return _read_parsed(source, chosen)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return _read_folder(path, chosen) if path.is_dir() else _read_file(path, chosen, name=path.stem)
    name = getattr(source, "name", None)
    place = _Place(
        name if isinstance(name, str) else None, Path(name).stem if isinstance(name, str) else "stream"
    )
    return _read_stream(source, chosen, place)


def load_records(source: Source, *, format: str | None = None) -> list[Record]:
    """Read all runs of ``source``; raises the error of the first record that cannot be read."""
    records = []
    for found in read(source, format=format):
        if isinstance(found, Broken):
            raise found.error
        records.append(found)
    return records


def load_trajectory(source: Source, *, format: str | None = None) -> Trajectory:
    """Read the only run of ``source``; raises FormatError if there is not exactly one."""
    records = load_records(source, format=format)
    if len(records) != 1:
        raise FormatError(f"expected one run, found {len(records)}", hint="use load_records")
    return records[0].trajectory


def files_of(folder: Path) -> list[Path]:
    """Files of a folder and its subfolders that may hold runs, in natural order; follows no links."""
    found = []
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        found += [Path(base, name) for name in names if name.lower().endswith(SUFFIXES) and name[0] != "."]
    return sorted(found, key=lambda path: _natural(path.relative_to(folder).as_posix()))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key that counts: ``2.json`` before ``10.json``, numbers before letters."""
    parts = filter(None, re.split(r"([0-9]{1,18})", name))
    return [(False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts]


def _read_folder(folder: Path, chosen: Format | None) -> Iterator[Record | Broken]:
    for candidate in [chosen] if chosen else _all():
        if isinstance(candidate, Opens) and (found := candidate.open(folder)) is not None:
            yield from found
            return
    paths = files_of(folder)
    if not paths:
        raise FormatError(f"no files of runs ({', '.join(SUFFIXES)}) in the folder", file=str(folder))
    for path in paths:
        try:
            yield from _read_file(path, chosen, name=path.relative_to(folder).with_suffix("").as_posix())
        except InputError as error:
            yield Broken(error=error.located(file=str(path)))


def _read_file(path: Path, chosen: Format | None, *, name: str) -> Iterator[Record | Broken]:
    try:
        # A file named so is unpacked as it is read, record by record; other compressed files are refused.
        opened = gzip.open if path.suffix.lower() == ".gz" else open
        stream = cast(BinaryIO, opened(path, "rb"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise FormatError(f"cannot be opened: {reason}", file=str(path)) from None
    with stream:
        yield from _read_stream(stream, chosen, _Place(str(path), name))


def _read_stream(
    stream: BinaryIO | TextIO, chosen: Format | None, place: _Place
) -> Iterator[Record | Broken]:
    try:
        yield from _read_content(content(stream), chosen, place)
    except InputError as error:
        raise error.located(file=place.file) from None


def _read_parsed(value: dict[str, Any] | list[Any], chosen: Format | None) -> Iterator[Record | Broken]:
    value = clean(value)
    if isinstance(value, dict):
        found = Content("document", iter([Item(0, value)]))
    else:
        found = Content("sequence", (Item(i, item) for i, item in enumerate(value)))
    yield from _read_content(found, chosen, _Place(None, "run"))


def _read_content(found: Content, chosen: Format | None, place: _Place) -> Iterator[Record | Broken]:
    sample = _sample(found.items)
    values = [item.value for item in sample if item.error is None]
    items = chain(sample, found.items)
    if found.kind != "sequence":
        if not values:
            yield from _broken(sample[0], place)
            return
        yield from _parse(chosen or recognise(values[0]), Item(0, values[0]), place)
        return
    if not sample:
        raise FormatError("an empty list")
    if not values:
        # Nothing to recognise the format by; the faults themselves say more than "unknown format" would.
        for item in sample:
            yield from _broken(item, place)
        return
    format, whole = (chosen, _is_whole(chosen, values)) if chosen else _recognise_sequence(values)
    yield from _read_sequence(format, items, whole=whole, place=place)


def _sample(items: Iterator[Item]) -> list[Item]:
    """The first items, and as many more as it takes to find one that could be parsed."""
    sample = list(islice(items, _SAMPLE))
    good = any(item.error is None for item in sample)
    while not good and (item := next(items, None)) is not None:
        sample.append(item)
        good = item.error is None
    return sample


def _read_sequence(
    format: Format, items: Iterator[Item], *, whole: bool, place: _Place
) -> Iterator[Record | Broken]:
    if isinstance(format, Joins):
        yield from _guarded(format.join(items, name=place.name), place, None)
    elif whole:
        good = []
        for item in items:
            good += [item.value] if item.error is None else []
            yield from _broken(item, place)
        yield from _parse(format, Item(0, good), place)
    else:
        for item in items:
            inside = _Place(place.file, f"{place.name}#{item.position}")
            yield from _broken(item, place) if item.error else _parse(format, item, inside)


def _broken(item: Item, place: _Place) -> Iterator[Broken]:
    if item.error is not None:
        yield Broken(error=item.error.located(file=place.file, record=item.position))


def _parse(format: Format, item: Item, place: _Place) -> Iterator[Record | Broken]:
    return _guarded(_parsed(format, item.value, place.name), place, item.position)


def _parsed(format: Format, value: Any, name: str) -> Iterator[Record]:
    check_depth(value, getattr(format, "max_depth", MAX_DEPTH))
    yield from format.parse(value, name=name)


def _guarded(
    found: Iterator[Record | Broken], place: _Place, position: int | None
) -> Iterator[Record | Broken]:
    """Turn what an importer raises into a Broken; one of a third party may raise anything."""
    try:
        for one in found:
            yield Broken(error=one.error.located(file=place.file)) if isinstance(one, Broken) else one
    except InputError as error:
        yield Broken(error=error.located(file=place.file, record=position))
    except Exception as error:
        reason = f"the importer failed with {type(error).__name__}"
        yield Broken(error=FormatError(reason, file=place.file, record=position))


def recognise(value: Any) -> Format:
    """The format of one parsed record (or text). Raises FormatError where none or several claim it."""
    return _best([(format.recognises(value), format) for format in _all()])


def _recognise_sequence(values: list[Any]) -> tuple[Format, bool]:
    """The format of a sequence, and whether the sequence as a whole is one record."""
    everyone = _all()
    best = _best([(max(_whole_score(f, values), _item_score(f, values)), f) for f in everyone])
    return best, _is_whole(best, values)


def _is_whole(format: Format, values: list[Any]) -> bool:
    return _whole_score(format, values) > _item_score(format, values)


def _whole_score(format: Format, values: list[Any]) -> float:
    return format.recognises(values)


def _item_score(format: Format, values: list[Any]) -> float:
    return max(format.recognises(value) for value in values)


def _best(scores: list[tuple[float, Format]]) -> Format:
    top = max((score for score, _ in scores), default=0.0)
    if top <= 0:
        raise FormatError(f"of no known format (there are: {', '.join(formats())})", hint=_NAME_IT)
    first, *others = [format for score, format in scores if score == top]
    if others:
        names = ", ".join(format.name for format in (first, *others))
        raise FormatError(f"could be any of: {names}", hint=_NAME_IT)
    return first


def _all() -> list[Format]:
    found = []
    for name in formats():
        try:
            found.append(formats().get(name))
        except ImportError:  # An installed format whose own dependency is missing must not stop the others.
            continue
    return found
