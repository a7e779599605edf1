"""Archive of a bundle: a zip file with stored members, fixed times and a manifest of SHA-256 sums.

The writer is deterministic: two exports of the same run have equal bytes. The reader accepts only the names
of the format, without compression and below a size limit. So no path leaves the archive and no member
expands.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard.bundles.bundle import (
    MEMBER_TYPES,
    OPTIONAL_MEMBERS,
    Bundle,
    decode_members,
    encode_json,
    encode_members,
)
from agentguard.errors import BundleError, ConfigError
from agentguard.trajectory.redaction import Redactor
from agentguard.version import __version__

FORMAT_VERSION: Final = 1
MAX_BUNDLE_BYTES: Final = 256 * 1024 * 1024
_MAX_NAME_CHARS: Final = 60
_MANIFEST: Final = "bundle.json"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def write_bundle(bundle: Bundle, path: str | os.PathLike[str], *, redactor: Redactor | None = None) -> None:
    """Write a bundle without its secrets to a file.

    Args:
        bundle: the bundle.
        path: the file; an existing file is replaced.
        redactor: redactor of the secrets; by default one with the built-in patterns and the bundle's.

    Raises:
        BundleError: the file cannot be written.
        FormatError: the bundle contains data that is not JSON.
    """
    redactor = redactor or Redactor(patterns=bundle.redaction_patterns)
    redacted = redactor.redact_data(encode_members(bundle))
    members = {name: encode_json(value) for name, value in redacted.items()}
    manifest = {
        "agentguard": __version__,
        "format_version": FORMAT_VERSION,
        "members": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
        "redaction_patterns": dict(bundle.redaction_patterns),
    }
    members[_MANIFEST] = encode_json(manifest)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # zipfile writes another byte on Windows
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[name])
    target = Path(path)
    temporary = target.with_name(f"{target.name}.part")
    try:
        temporary.write_bytes(stream.getvalue())
        temporary.replace(target)
    except OSError as error:
        raise BundleError(f"cannot be written: {error.strerror}", file=str(path)) from None


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle. Raises BundleError that names the file and the member."""
    members, patterns = _read_members(path)
    return replace(decode_members(members, str(path)), redaction_patterns=patterns)


def build_file_name(run_id: str, *, scope: str = "") -> str:
    """Return the name of a bundle's file, without path separators.

    Args:
        run_id: ID of the run; a client of the proxy may choose it.
        scope: tenant of the run; runs of different scopes have different names.
    """
    digest = hashlib.sha256(f"{scope}\0{run_id}".encode(errors="replace")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', run_id)[:_MAX_NAME_CHARS]}-{digest}.agb"


def verify_bundle(path: str | os.PathLike[str]) -> dict[str, str]:
    """Check format version, checksums and content of a bundle.

    Returns:
        The SHA-256 sum of each member by name.

    Raises:
        BundleError: the bundle is not valid; the error names the file and the member.
    """
    members, _ = _read_members(path)
    decode_members(members, str(path))
    return {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}


def _read_members(path: str | os.PathLike[str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the members by name, and the redaction patterns of the manifest."""
    file = str(path)
    try:
        if os.path.getsize(path) > MAX_BUNDLE_BYTES:
            raise BundleError(f"is larger than {MAX_BUNDLE_BYTES} bytes", file=file)
        with zipfile.ZipFile(path) as archive:
            _check_names(archive, file)
            members = {info.filename: _read_member(archive, info, file) for info in archive.infolist()}
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror or error}", file=file) from None
    # A damaged directory raises many types: struct errors, Unicode errors, unsupported versions.
    except BundleError:
        raise
    except Exception as error:
        raise BundleError(f"is not a valid zip file: {type(error).__name__}", file=file) from None
    return members, _check_manifest(members.pop(_MANIFEST), members, file)


def _check_names(archive: zipfile.ZipFile, file: str) -> None:
    names = [info.filename for info in archive.infolist()]
    expected = {_MANIFEST, *MEMBER_TYPES}
    for name in names:
        if name not in expected:
            raise BundleError(f"member {name!r} is not part of the format", file=file)
        if names.count(name) > 1:
            raise BundleError(f"member {name}: occurs twice", file=file)
    for name in sorted(expected - OPTIONAL_MEMBERS - set(names)):
        raise BundleError(f"member {name}: is missing", file=file)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> bytes:
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_BUNDLE_BYTES:
        raise BundleError(f"member {info.filename}: is compressed or too large", file=file)
    try:
        return archive.read(info)
    except Exception as error:
        reason = f"member {info.filename}: cannot be read: {type(error).__name__}"
        raise BundleError(reason, file=file) from None


def _check_manifest(data: bytes, members: dict[str, bytes], file: str) -> dict[str, str]:
    try:
        manifest: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise BundleError(f"member {_MANIFEST}: is not valid JSON", file=file) from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("members"), dict):
        raise BundleError(f"member {_MANIFEST}: has no object of members", file=file, field="members")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise BundleError(
            f"member {_MANIFEST}: this agentguard reads version {FORMAT_VERSION}",
            file=file,
            field="format_version",
        )
    for name, content in members.items():
        if manifest["members"].get(name) != hashlib.sha256(content).hexdigest():
            raise BundleError(f"member {name}: its SHA-256 sum differs from the manifest's", file=file)
    return _check_patterns(manifest.get("redaction_patterns", {}), file)


def _check_patterns(patterns: Any, file: str) -> dict[str, str]:
    try:
        Redactor(patterns=patterns)
    except (ConfigError, TypeError, AttributeError):
        reason = f"member {_MANIFEST}: has a pattern that is not a valid RE2 expression"
        raise BundleError(reason, file=file, field="redaction_patterns") from None
    return dict(patterns)
