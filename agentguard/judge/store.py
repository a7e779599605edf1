"""Model files: written with skops (no pickle), read only if they match their card.

A skops file of arrays is a zip of ``.npy`` members and a schema. It is written in a normal form, so that
equal models are equal bytes, and read here with NumPy alone: importing skops and scikit-learn takes seconds,
which a diagnosis should not cost. ``agentguard judge check`` reads it through skops as well.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from agentguard.errors import ModelFileError
from agentguard.judge.coding import Arrays, decode, encode
from agentguard.judge.features.spec import NAMES
from agentguard.judge.features.whole_run import RUN_NAMES
from agentguard.judge.files import (
    CARD,
    FILE,
    FORMAT,
    MOST_BYTES,
    TRAIN_COMMAND,
    checked,
    default_folder,
    load_card,
)
from agentguard.judge.model import Model
from agentguard.version import __version__

STRUCTURE: Final = "structure"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def save(model: Model, folder: Path, card: dict[str, Any]) -> dict[str, Any]:
    """Write a model and its card to a folder; returns the card with file, checksum and features filled in."""
    data = dump(model)
    full = {
        "format": FORMAT,
        "file": FILE,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "agentguard": __version__,
        **card,
        "features": {"steps": list(NAMES), "runs": list(RUN_NAMES)},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(data)
    (folder / CARD).write_bytes(orjson.dumps(full, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return full


def load(folder: Path | None = None) -> Model:
    """Read a model that matches its card.

    Args:
        folder: holds the model file and its card; None is the model that ships with agentguard.

    Raises:
        ModelFileError: there is none (the message has the command that trains one), it was changed, or it was
            made for other features.
    """
    return parse(checked(folder))


def dump(model: Model) -> bytes:
    """A model as a skops file in normal form."""
    import skops.io

    structure, arrays = encode(model)
    text = np.frombuffer(orjson.dumps(structure), dtype=np.uint8)
    return _normal(skops.io.dumps({**arrays, STRUCTURE: text}))


def parse(data: bytes) -> Model:
    """Read a skops file of arrays. Raises ModelFileError on any other content."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as held:
            if sum(info.file_size for info in held.infolist()) > MOST_BYTES:
                raise ModelFileError("the model file unpacks to more than any model")
            arrays = _arrays(held)
        structure = orjson.loads(arrays.pop(STRUCTURE).tobytes())
    except ModelFileError:
        raise
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError, OSError, EOFError) as error:
        raise ModelFileError(f"the model file cannot be read: {type(error).__name__}") from None
    return decode(structure, arrays)


def _arrays(held: zipfile.ZipFile) -> Arrays:
    schema = orjson.loads(held.read("schema.json"))
    found: Arrays = {}
    for name, node in schema["content"].items():
        if node["__loader__"] != "NdArrayNode" or node["type"] != "numpy":
            raise ModelFileError("the model file holds more than arrays")
        found[name] = np.lib.format.read_array(io.BytesIO(held.read(node["file"])), allow_pickle=False)
    return found


def _normal(data: bytes) -> bytes:
    """Number the members and ids in order, and leave out times: skops names them by address in memory."""
    source = zipfile.ZipFile(io.BytesIO(data))
    numbers: dict[int, int] = {}
    files: dict[str, str] = {}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            made = {name: renamed(item) for name, item in value.items()}
            if isinstance(made.get("__id__"), int):
                made["__id__"] = numbers.setdefault(made["__id__"], len(numbers))
            if isinstance(made.get("file"), str):
                made["file"] = files.setdefault(made["file"], f"{len(files):03d}.npy")
            return made
        return [renamed(item) for item in value] if isinstance(value, list) else value

    schema = orjson.dumps(renamed(orjson.loads(source.read("schema.json"))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for old, new in files.items():
            made.writestr(zipfile.ZipInfo(new, _EPOCH), source.read(old), zipfile.ZIP_DEFLATED)
        made.writestr(zipfile.ZipInfo("schema.json", _EPOCH), schema, zipfile.ZIP_DEFLATED)
    return out.getvalue()


__all__ = [
    "CARD",
    "FILE",
    "FORMAT",
    "STRUCTURE",
    "TRAIN_COMMAND",
    "default_folder",
    "dump",
    "load",
    "load_card",
    "parse",
    "save",
]
