"""Where model files lie, and whether they are what their cards say: NumPy is not needed for that."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard import resources
from agentguard.errors import ModelFileError
from agentguard.judge.features.spec import NAMES
from agentguard.judge.features.whole_run import RUN_NAMES

FILE: Final = "embedded.skops"
CARD: Final = "card.json"
FORMAT: Final = 1
TRAIN_COMMAND: Final = "agentguard judge train --data PATH --out DIR"
MOST_BYTES: Final = 64_000_000


def default_folder() -> Path:
    """Where the model that ships with agentguard lies."""
    return resources.models()


def checked(folder: Path | None = None) -> bytes:
    """The bytes of a model file that matches its card; see `agentguard.judge.store.load`.

    Raises:
        ModelFileError: as it does.
    """
    place = folder or default_folder()
    card = load_card(place)
    try:
        if (place / FILE).stat().st_size > MOST_BYTES:
            raise ModelFileError(f"{place / FILE} is larger than any model")
        data = (place / FILE).read_bytes()
    except OSError:
        raise _missing(place) from None
    if hashlib.sha256(data).hexdigest() != card.get("sha256"):
        raise ModelFileError(f"{place / FILE} does not match its card: restore both, or train anew")
    features = card.get("features")
    if card.get("format") != FORMAT or features != {"steps": list(NAMES), "runs": list(RUN_NAMES)}:
        raise ModelFileError(
            f"{place / FILE} was made for other features: train it anew with {TRAIN_COMMAND}"
        )
    return data


def load_card(folder: Path | None = None) -> dict[str, Any]:
    """Read a card. Raises ModelFileError if there is none or it is no JSON object."""
    place = folder or default_folder()
    try:
        card = orjson.loads((place / CARD).read_bytes())
    except OSError:
        raise _missing(place) from None
    except orjson.JSONDecodeError:
        raise ModelFileError(f"{place / CARD} is not JSON") from None
    if not isinstance(card, dict):
        raise ModelFileError(f"{place / CARD} is not a card")
    return card


def _missing(place: Path) -> ModelFileError:
    return ModelFileError(f"there is no model file and card in {place}; train one with: {TRAIN_COMMAND}")
