"""Files of a fitted vectoriser: a JSON card and an archive of learnt arrays, without pickle.

``vectoriser.json`` contains name, options, version and the SHA-256 of ``vectoriser.npz``. A vectoriser is
loaded only if both files match and the restored vectoriser has the version on the card.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from agentguard.errors import ConfigError, ModelFileError
from agentguard.schemata.vectors.base import StorableVectoriser, Vectoriser, vectorisers

if TYPE_CHECKING:
    from numpy.typing import NDArray

CARD_FILE: Final = "vectoriser.json"
ARRAYS_FILE: Final = "vectoriser.npz"
FORMAT_NAME: Final = 1
_MAX_ARRAY_BYTES: Final = 256_000_000
_MAX_CARD_BYTES: Final = 1_000_000


def save_vectoriser(vectoriser: Vectoriser, folder: Path) -> None:
    """Write a vectoriser to a folder, which is created if necessary; equal vectorisers give equal bytes.

    Raises:
        ConfigError: a plug-in vectoriser is not a `StorableVectoriser`, or its options are not JSON.
    """
    import numpy as np
    import orjson

    if not isinstance(vectoriser, StorableVectoriser):
        raise ConfigError(f"vectoriser {vectoriser.name!r} cannot be stored: it has no options and arrays")
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **dict(vectoriser.arrays()))
    data = packed.getvalue()
    card = {
        "format": FORMAT_NAME,
        "name": vectoriser.name,
        "version": vectoriser.version,
        "options": dict(vectoriser.options()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    try:
        card_json = orjson.dumps(card, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        raise ConfigError(f"the options of vectoriser {vectoriser.name!r} are not JSON values") from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ARRAYS_FILE).write_bytes(data)
    (folder / CARD_FILE).write_bytes(card_json)


def load_vectoriser(folder: Path) -> Vectoriser:
    """Read a vectoriser that `save_vectoriser` wrote.

    Raises:
        ModelFileError: a file is missing, was changed, or has another format; the message names it.
        UnknownPlugin: the vectoriser is from a package that is not installed.
    """
    card = _read_card(folder)
    data = _read_bounded(folder / ARRAYS_FILE, _MAX_ARRAY_BYTES)
    if hashlib.sha256(data).hexdigest() != card.get("sha256"):
        raise ModelFileError(f"{folder / ARRAYS_FILE} does not match {CARD_FILE}: restore both, or fit again")
    name, options = card.get("name"), card.get("options")
    if not isinstance(name, str) or not isinstance(options, dict):
        raise ModelFileError(f"{folder / CARD_FILE} does not name a vectoriser and its options")
    vectoriser = cast(StorableVectoriser, vectorisers().get(name)(**options)).restore(
        _decode_arrays(data, folder / ARRAYS_FILE)
    )
    if vectoriser.version != card.get("version"):
        raise ModelFileError(
            f"{folder / CARD_FILE}: vectoriser {name!r} has another version now: fit it again"
        )
    return vectoriser


def _read_card(folder: Path) -> Mapping[str, Any]:
    import orjson

    try:
        card = orjson.loads(_read_bounded(folder / CARD_FILE, _MAX_CARD_BYTES))
    except orjson.JSONDecodeError:
        raise ModelFileError(f"{folder / CARD_FILE} is not JSON") from None
    if not isinstance(card, dict) or card.get("format") != FORMAT_NAME:
        raise ModelFileError(f"{folder / CARD_FILE} is not of format {FORMAT_NAME}: fit the vectoriser again")
    return card


def _read_bounded(file: Path, max_bytes: int) -> bytes:
    try:
        if file.stat().st_size > max_bytes:
            raise ModelFileError(f"{file} exceeds the maximum size of a vectoriser")
        return file.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{file} cannot be read: {error.strerror}") from None


def _decode_arrays(data: bytes, file: Path) -> Mapping[str, NDArray[Any]]:
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MAX_ARRAY_BYTES:
                raise ModelFileError(f"{file} exceeds the maximum unpacked size of a vectoriser")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise ModelFileError(f"{file} cannot be read: {type(error).__name__}") from None
