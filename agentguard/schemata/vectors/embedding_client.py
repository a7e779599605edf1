"""Vectors from an embeddings server with OpenAI's ``/v1/embeddings`` API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentguard.errors import ConfigError, JudgeError, MissingExtra
from agentguard.options import reject_unknown_options
from agentguard.schemata.vectors.base import compute_content_hash
from agentguard.schemata.vectors.sentence_embeddings import check_batch, prepare_texts, zero_blank_rows
from agentguard.schemata.vectors.tokenizer import validate_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.schemata.vectors.base import Vectors


class EndpointEmbedding:
    """Embeddings from a server with OpenAI's ``/v1/embeddings`` API; needs the extra ``chat``.

    Args:
        model: name of the model on the server.
        base_url: URL of the server, with its ``/v1``.
        api_key: None reads ``OPENAI_API_KEY`` from the environment, if set. The key is never stored.
        timeout_s: timeout of one request, in seconds.
        batch: number of texts in one request.

    Raises:
        ConfigError: an option does not exist, is missing or is out of range.
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
        reject_unknown_options("vectoriser", self.name, unknown)
        check_batch(self.name, batch)
        if not model:
            raise ConfigError("vectoriser 'endpoint': model is not set")
        if not 0 < timeout_s <= 3600:
            raise ConfigError(
                f"vectoriser 'endpoint': timeout_s is {timeout_s!r}, expected a number in (0, 3600]"
            )
        self._host = _parse_host(base_url)
        self._model, self._url, self._key = model, base_url, api_key
        self._timeout, self._batch = timeout_s, batch
        # The weights on a server cannot be hashed, so the name must identify the model.
        self.version = compute_content_hash("endpoint 1", base_url.encode(), model.encode())

    def fit(self, texts: Sequence[str]) -> EndpointEmbedding:
        """Return itself; the model is already trained."""
        validate_texts(texts)
        return self

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of shape (n, d); see `agentguard.schemata.vectors.base.Vectoriser`.

        Raises:
            MissingExtra: the openai package is not installed.
            JudgeError: the server is unreachable, rejects the request, does not answer in time or returns an
                invalid response.
        """
        import numpy as np

        prepared, blank = prepare_texts(texts)
        with self._create_client() as client:
            parts = [
                self._request_embeddings(client, prepared[start : start + self._batch])
                for start in range(0, len(prepared), self._batch)
            ]
        if len({part.shape[1] for part in parts}) > 1:
            raise JudgeError(f"{self._host} returned vectors of different lengths")
        return zero_blank_rows(np.concatenate(parts) if parts else np.zeros((0, 1)), blank)

    def options(self) -> Mapping[str, Any]:
        """Return all options except the key."""
        return {
            "model": self._model,
            "base_url": self._url,
            "timeout_s": self._timeout,
            "batch": self._batch,
        }

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return no arrays."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> EndpointEmbedding:  # noqa: ARG002
        """Return itself."""
        return self

    def _create_client(self) -> Any:
        import os

        try:
            from openai import OpenAI
        except ImportError:
            raise MissingExtra("openai", "chat") from None
        key = self._key or os.environ.get("OPENAI_API_KEY") or "none"
        return OpenAI(base_url=self._url, api_key=key, timeout=self._timeout, max_retries=1)

    def _request_embeddings(self, client: Any, texts: Sequence[str]) -> NDArray[np.float64]:
        import numpy as np
        from openai import APIStatusError, OpenAIError

        try:
            answer = client.embeddings.create(model=self._model, input=list(texts), encoding_format="float")
            embeddings = {item.index: item.embedding for item in answer.data}
            rows = np.array([embeddings[index] for index in range(len(texts))], dtype=np.float64)
        except APIStatusError as error:
            raise JudgeError(f"{self._host} returned status {error.status_code}, not embeddings") from None
        except OpenAIError as error:
            raise JudgeError(f"{self._host} returned no embeddings: {type(error).__name__}") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise JudgeError(f"{self._host} returned something other than embeddings") from None
        if rows.ndim != 2 or not rows.size or len(answer.data) != len(texts) or not np.isfinite(rows).all():
            raise JudgeError(f"{self._host} did not return a finite vector for each text")
        return rows


def _parse_host(url: str) -> str:
    """Return host and port for messages. Raises ConfigError if the URL is invalid or contains a password."""
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:
        raise ConfigError("vectoriser 'endpoint': base_url is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("vectoriser 'endpoint': base_url must be like http://host:8000/v1")
    if parts.username or parts.password:
        raise ConfigError("vectoriser 'endpoint': base_url contains credentials; use api_key")
    return host
