"""Manifests of data sets: description, source and checksums.

A data set is a folder with a ``manifest.toml`` and, for people, a ``card.md``. The data sets of the package
are in ``datasets/``. Users pass their own to `DatasetCatalogue.load` or list them in ``AGENTGUARD_DATASETS``
(separated as in ``PATH``), as the folder of one data set or of several. Most data sets are not
redistributed: the manifest describes how to obtain them. This module opens no network connection.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from agentguard import package_data
from agentguard.errors import ConfigError, FormatError, InputError
from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.json_node import JsonNode

DATASETS_VARIABLE = "AGENTGUARD_DATASETS"
MANIFEST, CARD = "manifest.toml", "card.md"
ORIGINS = ("natural", "injected")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
_KEYS = frozenset(
    {
        "name", "title", "format", "licence", "origin", "redistributed", "paper", "source", "obtain",
        "records", "labels", "split_by", "part", "file", "build",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPart:
    """Part of a data set, reported separately: name, glob of its files, and number of runs, if known."""

    name: str
    files: str
    records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFile:
    """Expected state of a file.

    Attributes:
        path: below the folder of the data set, with forward slashes.
        sha256: of the file, in hex; empty if not known.
        size: in bytes; None if not known.
        unpacked_sha256: of the content of a compressed file, since versions of zlib compress differently.
        records: number of runs in the file; None if not known.
    """

    path: str
    sha256: str = ""
    size: int | None = None
    unpacked_sha256: str = ""
    records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """Description of a data set.

    Attributes:
        folder: the folder of the manifest; the files of a redistributed data set are below it.
        origin: ``natural`` or ``injected``; results of the two are never mixed.
        redistributed: whether the runs are stored beside the manifest.
        obtain: instructions for obtaining the runs.
        labels: the annotated fields, e.g. ``root_cause.step``.
        build: parameters for generating the data set again; empty for data sets that are not generated.
    """

    name: str
    folder: Path
    title: str
    format: str
    licence: str
    origin: str = "natural"
    redistributed: bool = False
    paper: str = ""
    source: tuple[str, ...] = ()
    obtain: str = ""
    records: int | None = None
    labels: tuple[str, ...] = ()
    split_by: str = ""
    parts: tuple[DatasetPart, ...] = ()
    files: tuple[DatasetFile, ...] = ()
    build: dict[str, Any] = field(default_factory=dict)

    @property
    def has_checksums(self) -> bool:
        """Return whether the manifest contains checksums to compare a copy with."""
        return any(file.sha256 or file.unpacked_sha256 for file in self.files)

    def read_card(self) -> str:
        """Return the text of the card, or an empty string if the data set has no card."""
        path = self.folder / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else ""


class DatasetCatalogue:
    """Data sets by name."""

    def __init__(self, manifests: dict[str, Path]) -> None:
        self._paths = manifests

    @classmethod
    def load(cls, *folders: Path) -> DatasetCatalogue:
        """Load the data sets of the package, of ``folders`` and of ``AGENTGUARD_DATASETS``.

        Raises:
            ConfigError: a folder is missing or has no manifest, or two data sets have the same name.
            InputError: a manifest is not valid.
        """
        environment_folders = [
            Path(part) for part in os.environ.get(DATASETS_VARIABLE, "").split(os.pathsep) if part
        ]
        manifest_paths: dict[str, Path] = {}
        package_folder = package_data.get_datasets_dir()
        for folder in (
            *([package_folder] if package_folder.is_dir() else []),
            *environment_folders,
            *folders,
        ):
            for path in _find_manifests(folder):
                name = read_manifest(path).name
                if manifest_paths.setdefault(name, path).resolve() != path.resolve():
                    raise ConfigError(f"two data sets are named {name}: {manifest_paths[name]} and {path}")
        return cls(manifest_paths)

    def __iter__(self) -> Iterator[DatasetManifest]:
        return (self.get(name) for name in self.names())

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._paths))

    def get(self, name: str) -> DatasetManifest:
        """Return the data set called ``name``. Raises ConfigError with the known names if it is unknown."""
        if name not in self._paths:
            close_names = get_close_matches(name, self._paths, 1)
            hint = (
                f"did you mean {close_names[0]}?" if close_names else f"there are: {', '.join(self.names())}"
            )
            raise ConfigError(f"no data set named {name!r}; {hint}")
        return read_manifest(self._paths[name])


def read_manifest(path: Path) -> DatasetManifest:
    """Read a manifest. Raises InputError with the file and the field that is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return _parse_manifest(JsonNode.from_value(data), path.parent)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except FormatError as error:
        raise InputError(error.reason, file=str(path), field=error.field, hint=error.hint) from None
    except ValueError as error:  # errors of tomllib, and text that is not UTF-8
        raise InputError(f"not valid TOML: {error}", file=str(path)) from None


def describe_source(manifest: DatasetManifest) -> str:
    """Return a clause that describes how to obtain a data set."""
    return manifest.obtain or (f"see {', '.join(manifest.source)}" if manifest.source else f"see its {CARD}")


def resolve_path(folder: Path, relative: str) -> Path:
    """Return the path of a file in the folder. Raises InputError if the path or a link leads outside."""
    check_relative_path(relative)
    path = folder.joinpath(*PurePosixPath(relative).parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError("is outside the folder of the data set", file=relative)
    return path


def check_relative_path(relative: str, at: str = "path") -> None:
    """Raise FormatError unless a path is relative, plain, and means the same file on every system."""
    parts = relative.split("/")
    windows = PureWindowsPath(relative)
    odd = any(part in ("", ".", "..") or part[-1] in " ." or _RESERVED.fullmatch(part) for part in parts)
    if odd or windows.drive or windows.root or any(c in relative for c in '\\:<>"|') or "\0" in relative:
        raise FormatError("expected a path below the data set's folder, with forward slashes", field=at)


def _find_manifests(folder: Path) -> list[Path]:
    if (folder / MANIFEST).is_file():
        return [folder / MANIFEST]
    manifests = sorted(folder.glob(f"*/{MANIFEST}")) if folder.is_dir() else []
    if not manifests:
        raise ConfigError(f"{folder} has no data set ({MANIFEST}, or folders with one)")
    return manifests


def _parse_manifest(node: JsonNode, folder: Path) -> DatasetManifest:
    for key in node.data:
        if key not in _KEYS:
            raise node.build_error(key, f"unknown; a manifest has {', '.join(sorted(_KEYS))}")
    return DatasetManifest(
        name=_parse_pattern(node, "name", _NAME, "small letters, digits, _ . and -"),
        folder=folder,
        title=node.text("title"),
        format=_parse_format(node),
        licence=node.text("licence"),
        origin=_parse_origin(node),
        redistributed=bool(node.boolean_or("redistributed")),
        paper=node.text_or("paper"),
        source=_parse_texts(node, "source"),
        obtain=node.text_or("obtain"),
        records=_parse_count(node, "records"),
        labels=_parse_texts(node, "labels"),
        split_by=node.text_or("split_by"),
        parts=tuple(_parse_part(one) for one in node.nodes_or("part")),
        files=tuple(_parse_file(one) for one in node.nodes_or("file")),
        build=dict(node.node_or("build").data),
    )


def _parse_part(node: JsonNode) -> DatasetPart:
    files = node.text("files")
    check_relative_path(files.replace("*", "x").replace("?", "x"), node.field_path("files"))
    return DatasetPart(name=node.text("name"), files=files, records=_parse_count(node, "records"))


def _parse_file(node: JsonNode) -> DatasetFile:
    path = node.text("path")
    check_relative_path(path, node.field_path("path"))
    return DatasetFile(
        path=path,
        sha256=_parse_checksum(node, "sha256"),
        size=_parse_count(node, "size"),
        unpacked_sha256=_parse_checksum(node, "unpacked_sha256"),
        records=_parse_count(node, "records"),
    )


def _parse_checksum(node: JsonNode, key: str) -> str:
    return _parse_pattern(node, key, _SHA256, "64 small hexadecimal digits") if key in node else ""


def _parse_pattern(node: JsonNode, key: str, pattern: re.Pattern[str], wanted: str) -> str:
    text = node.text(key)
    if not pattern.fullmatch(text):
        raise node.build_error(key, f"expected {wanted}")
    return text


def _parse_format(node: JsonNode) -> str:
    name = node.text("format")
    if name not in formats():
        raise node.build_error("format", f"no such format; there are {', '.join(formats())}")
    return name


def _parse_origin(node: JsonNode) -> str:
    origin = node.text_or("origin") or "natural"
    if origin not in ORIGINS:
        raise node.build_error("origin", f"expected {' or '.join(ORIGINS)}")
    return origin


def _parse_count(node: JsonNode, key: str) -> int | None:
    value = node.integer_or(key)
    if value is not None and value < 0:
        raise node.build_error(key, "expected 0 or more")
    return value


def _parse_texts(node: JsonNode, key: str) -> tuple[str, ...]:
    values = node.items_or(key)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise node.build_error(f"{key}[{i}]", "expected text")
    return tuple(values)
