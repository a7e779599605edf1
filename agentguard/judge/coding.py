"""A model as named arrays and one JSON text, and back: only classes of an explicit list are ever made.

``encode`` walks frozen dataclasses and tuples. ``decode`` makes nothing that is not in `TRUSTED`, and no
field that the class does not have, so that a file can hold numbers and structure but no code.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agentguard.errors import ModelFileError
from agentguard.judge.choice import Kernel, Linear, Scaler
from agentguard.judge.forest import Forest
from agentguard.judge.kinds import Kind
from agentguard.judge.model import Model, Specialist
from agentguard.judge.outcome import Outcome
from agentguard.judge.portable import Portable
from agentguard.judge.ranker import Ranker, Relative

# Model files hold these tags. A class may be renamed; its tag may not.
TRUSTED: Final[dict[str, type]] = {
    "Forest": Forest,
    "Kernel": Kernel,
    "Kind": Kind,
    "Linear": Linear,
    "Model": Model,
    "Outcome": Outcome,
    "Portable": Portable,
    "Ranker": Ranker,
    "Relative": Relative,
    "Scaler": Scaler,
    "Specialist": Specialist,
}
_TAGS: Final = {kind: tag for tag, kind in TRUSTED.items()}
_DTYPES: Final = ("float32", "float64", "int32")
_MOST_DEPTH: Final = 12

Arrays = dict[str, NDArray[Any]]


def encode(value: object) -> tuple[Any, Arrays]:
    """Structure as JSON values, and the arrays it refers to by name."""
    arrays: Arrays = {}
    return _encode(value, arrays), arrays


def _encode(value: object, arrays: Arrays) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays):03d}"
        small = value.astype(np.float32)
        # Half the size where nothing is lost by it.
        exact = value.dtype == np.float64 and bool(np.array_equal(small.astype(np.float64), value))
        arrays[name] = small if exact else value
        return {"array": name, "dtype": str(value.dtype)}
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, arrays) for item in value]}
    tag = _TAGS.get(type(value))
    if tag is not None and is_dataclass(value):
        # A part that is left out by default is not written: models from before it existed stay as they were.
        held = {
            f.name: _encode(getattr(value, f.name), arrays)
            for f in fields(value)
            if f.init and not (f.default is None and getattr(value, f.name) is None)
        }
        return {"class": tag, "fields": held}
    raise TypeError(f"{type(value).__name__} is not a part of a model")


def decode(structure: Any, arrays: Arrays) -> Model:
    """The inverse of `encode`. Raises ModelFileError on anything that no training writes."""
    try:
        made = _decode(structure, arrays, 0)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"the model file has a part that does not fit: {type(error).__name__}") from None
    if not isinstance(made, Model):
        raise ModelFileError("the model file holds no model")
    return made


def _decode(value: Any, arrays: Arrays, depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise ModelFileError("the model file is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if "array" in value:
        if value["dtype"] not in _DTYPES:
            raise ModelFileError("the model file has an array of a type that is not trusted")
        return arrays[value["array"]].astype(value["dtype"])
    if "tuple" in value:
        return tuple(_decode(item, arrays, depth + 1) for item in value["tuple"])
    kind = TRUSTED.get(value["class"])
    if kind is None:
        raise ModelFileError("the model file has a class that is not trusted")
    return kind(**{name: _decode(held, arrays, depth + 1) for name, held in value["fields"].items()})
