"""A fitted vectoriser as two files: what it is as JSON, what it learnt as arrays. No pickle is read.

``vectoriser.json`` holds name, options, version and the SHA-256 of ``vectoriser.npz``. Both are read only if
they match, and the vectoriser that results must have the version that was written.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from agentguard.errors import ConfigError, ModelFileError
from agentguard.schemata.vectorise import Storable, Vectoriser, vectorisers

if TYPE_CHECKING:
    from numpy.typing import NDArray

CARD: Final = "vectoriser.json"
ARRAYS: Final = "vectoriser.npz"
FORMAT: Final = 1
_MOST_BYTES: Final = 256_000_000
_MOST_CARD_BYTES: Final = 1_000_000


def save(vectoriser: Vectoriser, folder: Path) -> None:
    """Write a vectoriser to a folder, which is made if need be; equal vectorisers are equal bytes.

    Raises:
        ConfigError: the vectoriser, of a third party, is not `Storable`, or its options are no JSON.
    """
    import numpy as np
    import orjson

    if not all(hasattr(vectoriser, part) for part in ("options", "arrays", "restored")):
        raise ConfigError(f"vectoriser {vectoriser.name!r} cannot be stored: it has no options and arrays")
    stored = cast(Storable, vectoriser)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **dict(stored.arrays()))
    data = packed.getvalue()
    card = {
        "format": FORMAT,
        "name": stored.name,
        "version": stored.version,
        "options": dict(stored.options()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    try:
        written = orjson.dumps(card, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        raise ConfigError(f"the options of vectoriser {vectoriser.name!r} are no JSON values") from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ARRAYS).write_bytes(data)
    (folder / CARD).write_bytes(written)


def load(folder: Path) -> Vectoriser:
    """Read a vectoriser that `save` wrote.

    Raises:
        ModelFileError: a file is missing, was changed, or is of another format; the message names it.
        UnknownPlugin: it is a vectoriser of a package that is not installed.
    """
    card = _card(folder)
    data = _read(folder / ARRAYS, _MOST_BYTES)
    if hashlib.sha256(data).hexdigest() != card.get("sha256"):
        raise ModelFileError(f"{folder / ARRAYS} does not match {CARD}: restore both, or fit anew")
    name, options = card.get("name"), card.get("options")
    if not isinstance(name, str) or not isinstance(options, dict):
        raise ModelFileError(f"{folder / CARD} names no vectoriser and options")
    made = cast(Storable, vectorisers().get(name)(**options)).restored(_arrays(data, folder / ARRAYS))
    if made.version != card.get("version"):
        raise ModelFileError(f"{folder / CARD}: vectoriser {name!r} is of another version now: fit it anew")
    return made


def _card(folder: Path) -> Mapping[str, Any]:
    import orjson

    try:
        card = orjson.loads(_read(folder / CARD, _MOST_CARD_BYTES))
    except orjson.JSONDecodeError:
        raise ModelFileError(f"{folder / CARD} is not JSON") from None
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise ModelFileError(f"{folder / CARD} is not of format {FORMAT}: fit the vectoriser anew")
    return card


def _read(file: Path, most: int) -> bytes:
    try:
        if file.stat().st_size > most:
            raise ModelFileError(f"{file} is larger than any vectoriser")
        return file.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{file} cannot be read: {error.strerror}") from None


def _arrays(data: bytes, file: Path) -> Mapping[str, NDArray[Any]]:
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as held:
            if sum(info.file_size for info in held.infolist()) > _MOST_BYTES:
                raise ModelFileError(f"{file} unpacks to more than any vectoriser")
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise ModelFileError(f"{file} cannot be read: {type(error).__name__}") from None
