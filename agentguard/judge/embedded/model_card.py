"""Card of a model, and verification of the model file against it. The module does not import NumPy."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard import package_data
from agentguard.errors import ModelFileError
from agentguard.judge.embedded.features.catalogue import FEATURE_NAMES
from agentguard.judge.embedded.features.run_level import RUN_FEATURE_NAMES

MODEL_FILE: Final = "embedded.skops"
CARD_FILE: Final = "card.json"
MODEL_FORMAT: Final = 2
TRAIN_COMMAND: Final = "agentguard judge train PATH --output DIR"
MAX_MODEL_BYTES: Final = 64_000_000


def get_default_folder() -> Path:
    """Return the folder of the packaged model."""
    return package_data.get_models_dir()


def read_verified_model(folder: Path | None = None) -> bytes:
    """Read a model file and verify it against its card; see `agentguard.judge.embedded.model_io.load_model`.

    Raises:
        ModelFileError: the model is missing, does not match its card, or was made for other features.
    """
    model_folder = folder or get_default_folder()
    card = load_card(model_folder)
    try:
        if (model_folder / MODEL_FILE).stat().st_size > MAX_MODEL_BYTES:
            raise ModelFileError(
                f"{model_folder / MODEL_FILE} exceeds the maximum of {MAX_MODEL_BYTES:,} bytes"
            )
        data = (model_folder / MODEL_FILE).read_bytes()
    except OSError:
        raise _build_missing_model_error(model_folder) from None
    if hashlib.sha256(data).hexdigest() != card.get("sha256"):
        raise ModelFileError(
            f"{model_folder / MODEL_FILE} does not match its card: restore both, or train again"
        )
    features = card.get("features")
    if card.get("format") != MODEL_FORMAT or features != {
        "steps": list(FEATURE_NAMES),
        "runs": list(RUN_FEATURE_NAMES),
    }:
        raise ModelFileError(
            f"{model_folder / MODEL_FILE} was made for other features: train it again with {TRAIN_COMMAND}"
        )
    return data


def load_card(folder: Path | None = None) -> dict[str, Any]:
    """Return the card of a model. Raises ModelFileError if it is missing or not a JSON object."""
    model_folder = folder or get_default_folder()
    try:
        card = orjson.loads((model_folder / CARD_FILE).read_bytes())
    except OSError:
        raise _build_missing_model_error(model_folder) from None
    except orjson.JSONDecodeError:
        raise ModelFileError(f"{model_folder / CARD_FILE} is not JSON") from None
    if not isinstance(card, dict):
        raise ModelFileError(f"{model_folder / CARD_FILE} is not a card")
    return card


def _build_missing_model_error(folder: Path) -> ModelFileError:
    return ModelFileError(f"there is no model file and card in {folder}; train one with: {TRAIN_COMMAND}")
