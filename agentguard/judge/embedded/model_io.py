"""Model files: written with skops (no pickle), and loaded only if they match their card.

A skops file of arrays is a zip of ``.npy`` members and a schema. It is written in a normal form, so that
equal models are equal bytes. It is loaded with NumPy alone, since importing skops and scikit-learn takes
seconds. ``agentguard judge check`` loads it through skops as well.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from agentguard.errors import ModelFileError
from agentguard.judge.embedded.conditional_logit import FeatureScaler, KernelScorer, LinearScorer
from agentguard.judge.embedded.features.catalogue import FEATURE_NAMES
from agentguard.judge.embedded.features.run_level import RUN_FEATURE_NAMES
from agentguard.judge.embedded.forest import Forest
from agentguard.judge.embedded.log_kind import LogKind
from agentguard.judge.embedded.model import EmbeddedModel, LogKindModel
from agentguard.judge.embedded.model_card import (
    CARD_FILE,
    MAX_MODEL_BYTES,
    MODEL_FILE,
    MODEL_FORMAT,
    read_verified_model,
)
from agentguard.judge.embedded.outcome_model import OutcomeModel
from agentguard.judge.embedded.ranker import Ranker, RunRelativeModel
from agentguard.judge.embedded.relative_outcome import RelativeOutcomeModel
from agentguard.judge.embedded.rule_outcome import OutcomeRule, RuleOutcomeModel
from agentguard.judge.embedded.text_outcome import TextOutcomeModel
from agentguard.judge.embedded.transfer_ranker import TransferRanker
from agentguard.version import __version__

# Model files contain these tags. A class may be renamed; its tag may not.
TRUSTED_TYPES: Final[dict[str, type]] = {
    "Forest": Forest,
    "Kernel": KernelScorer,
    "Kind": LogKind,
    "Linear": LinearScorer,
    "Model": EmbeddedModel,
    "Outcome": OutcomeModel,
    "Portable": TransferRanker,
    "Ranker": Ranker,
    "Relative": RunRelativeModel,
    "RelativeOutcome": RelativeOutcomeModel,
    "Rule": OutcomeRule,
    "RuleOutcome": RuleOutcomeModel,
    "Scaler": FeatureScaler,
    "Specialist": LogKindModel,
    "TextOutcome": TextOutcomeModel,
}
_TAGS: Final = {kind: tag for tag, kind in TRUSTED_TYPES.items()}
_DTYPES: Final = ("float32", "float64", "int32")
_MAX_DEPTH: Final = 12

Arrays = dict[str, NDArray[Any]]


def encode_model(value: object) -> tuple[Any, Arrays]:
    """Encode a model as JSON values, with references by name to arrays."""
    arrays: Arrays = {}
    return _encode_value(value, arrays), arrays


def _encode_value(value: object, arrays: Arrays) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays):03d}"
        single = value.astype(np.float32)
        # Store as float32 if that is exact: half the size.
        is_exact = value.dtype == np.float64 and bool(np.array_equal(single.astype(np.float64), value))
        arrays[name] = single if is_exact else value
        return {"array": name, "dtype": str(value.dtype)}
    if isinstance(value, tuple):
        return {"tuple": [_encode_value(item, arrays) for item in value]}
    tag = _TAGS.get(type(value))
    if tag is not None and is_dataclass(value):
        # Omit fields that are None by default: older models keep their bytes when a field is added.
        encoded_fields = {
            f.name: _encode_value(getattr(value, f.name), arrays)
            for f in fields(value)
            if f.init and not (f.default is None and getattr(value, f.name) is None)
        }
        return {"class": tag, "fields": encoded_fields}
    raise TypeError(f"{type(value).__name__} is not a part of a model")


def decode_model(structure: Any, arrays: Arrays) -> EmbeddedModel:
    """Decode a model. Raises ModelFileError on any part that training does not write."""
    try:
        model = _decode_value(structure, arrays, 0)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"a part of the model file is not valid: {type(error).__name__}") from None
    if not isinstance(model, EmbeddedModel):
        raise ModelFileError("the model file contains no model")
    return model


def _decode_value(value: Any, arrays: Arrays, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ModelFileError("the model file is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if "array" in value:
        if value["dtype"] not in _DTYPES:
            raise ModelFileError("the model file has an array of a type that is not trusted")
        return arrays[value["array"]].astype(value["dtype"])
    if "tuple" in value:
        return tuple(_decode_value(item, arrays, depth + 1) for item in value["tuple"])
    kind = TRUSTED_TYPES.get(value["class"])
    if kind is None:
        raise ModelFileError("the model file has a class that is not trusted")
    return kind(**{name: _decode_value(field, arrays, depth + 1) for name, field in value["fields"].items()})


STRUCTURE_KEY: Final = "structure"
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def save_model(model: EmbeddedModel, folder: Path, card: dict[str, Any]) -> dict[str, Any]:
    """Write a model and its card to a folder; return the card with file, checksum and features filled in."""
    data = dump_model(model)
    full = {
        "format": MODEL_FORMAT,
        "file": MODEL_FILE,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "agentguard": __version__,
        **card,
        "features": {"steps": list(FEATURE_NAMES), "runs": list(RUN_FEATURE_NAMES)},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(data)
    (folder / CARD_FILE).write_bytes(
        orjson.dumps(full, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )
    return full


def load_model(folder: Path | None = None) -> EmbeddedModel:
    """Load a model that matches its card.

    Args:
        folder: folder of the model file and its card; None selects the packaged model.

    Raises:
        ModelFileError: the model is missing (the message has the command that trains one), was changed, or
            was made for other features.
    """
    return parse_model(read_verified_model(folder))


def dump_model(model: EmbeddedModel) -> bytes:
    """Encode a model as a skops file in normal form."""
    import skops.io

    structure, arrays = encode_model(model)
    text = np.frombuffer(orjson.dumps(structure), dtype=np.uint8)
    return _normalize_archive(skops.io.dumps({**arrays, STRUCTURE_KEY: text}))


def parse_model(data: bytes) -> EmbeddedModel:
    """Decode a skops file of arrays. Raises ModelFileError on any other content."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > MAX_MODEL_BYTES:
                raise ModelFileError("the unpacked model file exceeds the maximum size")
            arrays = _read_arrays(archive)
        structure = orjson.loads(arrays.pop(STRUCTURE_KEY).tobytes())
    except ModelFileError:
        raise
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError, OSError, EOFError) as error:
        raise ModelFileError(f"the model file cannot be read: {type(error).__name__}") from None
    return decode_model(structure, arrays)


def _read_arrays(archive: zipfile.ZipFile) -> Arrays:
    schema = orjson.loads(archive.read("schema.json"))
    arrays: Arrays = {}
    for name, node in schema["content"].items():
        if node["__loader__"] != "NdArrayNode" or node["type"] != "numpy":
            raise ModelFileError("the model file contains more than arrays")
        arrays[name] = np.lib.format.read_array(io.BytesIO(archive.read(node["file"])), allow_pickle=False)
    return arrays


def _normalize_archive(data: bytes) -> bytes:
    """Number members and ids in order, and set constant timestamps; skops names members by memory address."""
    source = zipfile.ZipFile(io.BytesIO(data))
    numbers: dict[int, int] = {}
    files: dict[str, str] = {}

    def renumber(value: Any) -> Any:
        if isinstance(value, dict):
            items = {name: renumber(item) for name, item in value.items()}
            if isinstance(items.get("__id__"), int):
                items["__id__"] = numbers.setdefault(items["__id__"], len(numbers))
            if isinstance(items.get("file"), str):
                items["file"] = files.setdefault(items["file"], f"{len(files):03d}.npy")
            return items
        return [renumber(item) for item in value] if isinstance(value, list) else value

    schema = orjson.dumps(renumber(orjson.loads(source.read("schema.json"))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for old, new in files.items():
            archive.writestr(zipfile.ZipInfo(new, _ZIP_EPOCH), source.read(old), zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo("schema.json", _ZIP_EPOCH), schema, zipfile.ZIP_DEFLATED)
    return out.getvalue()
