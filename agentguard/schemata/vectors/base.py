"""Vectoriser interface, registry and default: texts to vectors whose cosine is their similarity.

``hashing`` needs no training and is the default. ``tfidf_svd`` learns from the texts of the schemata,
``sentence`` uses a sentence-embedding model, and ``endpoint`` calls an embeddings server. A package adds a
vectoriser through the entry-point group ``agentguard.vectorisers``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from agentguard.errors import ConfigError
from agentguard.options import reject_unknown_options
from agentguard.plugins import Registry
from agentguard.schemata.vectors.tokenizer import validate_texts, weigh_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

DEFAULT_VECTORISER: Final = "hashing"
_HASH_PLACES: Final = 16
"""Number of non-zero places of a term in its vector; two bytes of its digest decide each."""

_BATCH_SIZE: Final = 64
"""Number of texts in one batch, which bounds the memory beyond the vectors."""


class Vectoriser(Protocol):
    """Conversion of texts to vectors."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        ...

    @property
    def version(self) -> str:
        """Hash of the options and the learnt state; vectors of different versions are not comparable."""
        ...

    def fit(self, texts: Sequence[str]) -> Vectoriser:
        """Return a copy fitted to ``texts``, or itself if there is nothing to learn; deterministic."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``: float32 of shape (n, d), where ``d`` is constant for a version.

        Rows have length 1; the row of a text without a known word is all zero.
        """
        ...


@runtime_checkable
class StorableVectoriser(Vectoriser, Protocol):
    """Vectoriser that `agentguard.schemata.vectors.vectoriser_files` can write and read."""

    def options(self) -> Mapping[str, Any]:
        """Return the options of its factory, as JSON values without secrets."""
        ...

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the learnt arrays; may be empty."""
        ...

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> Vectoriser:
        """Return a copy with the learnt arrays. Raises ModelFileError if their form is not valid."""
        ...


class VectoriserFactory(Protocol):
    """Factory that builds a vectoriser from options."""

    def __call__(self, **options: Any) -> Vectoriser:
        """Build a vectoriser. Raises ConfigError if an option does not exist or is out of range."""
        ...


_REGISTRY: Registry[VectoriserFactory] = Registry(
    "vectoriser",
    group="agentguard.vectorisers",
    builtin={
        "hashing": "agentguard.schemata.vectors.base:HashingVectoriser",
        "tfidf_svd": "agentguard.schemata.vectors.tfidf_svd:TfidfSvd",
        "sentence": "agentguard.schemata.vectors.sentence_embeddings:SentenceEmbedding",
        "endpoint": "agentguard.schemata.vectors.embedding_client:EndpointEmbedding",
    },
)


def vectorisers() -> Registry[VectoriserFactory]:
    """Return the registry of vectorisers: the built-in ones and the installed plug-ins."""
    return _REGISTRY


class HashingVectoriser:
    """Hashed counts of words and word pairs, projected to few dimensions, without training.

    Each term has 16 fixed places, one in each sixteenth of the vector, with fixed signs. This is the block
    form of the sparse Johnson-Lindenstrauss transform (Kane and Nelson, 2014); it needs neither a vocabulary
    nor a projection matrix. Cosines differ from those of the counts by about ``1 / sqrt(dims)``.

    Args:
        dims: length of a vector: 64, 128, 256, 512, 1024, 2048 or 4096.

    Raises:
        ConfigError: ``dims`` is another number, or an option does not exist.
    """

    name = "hashing"

    def __init__(self, *, dims: int = 256, **unknown: object) -> None:
        reject_unknown_options("vectoriser", self.name, unknown)
        if dims not in (64, 128, 256, 512, 1024, 2048, 4096):
            raise ConfigError(f"vectoriser 'hashing': dims is {dims!r}, expected a power of 2 in [64, 4096]")
        self._dims = dims
        self.version = compute_content_hash("hashing 1", str(dims).encode())

    def fit(self, texts: Sequence[str]) -> HashingVectoriser:
        """Return itself; there is nothing to learn."""
        validate_texts(texts)
        return self

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of shape (n, dims); see `Vectoriser.encode`."""
        return project_terms([weigh_terms(text) for text in validate_texts(texts)], self._dims)

    def options(self) -> Mapping[str, Any]:
        """Return ``dims``."""
        return {"dims": self._dims}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return no arrays."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> HashingVectoriser:  # noqa: ARG002
        """Return itself."""
        return self


def project_terms(weighted: Sequence[Mapping[str, float]], dims: int) -> Vectors:
    """Return weighted terms as rows of length 1; shape (n, dims), ``dims`` a power of two from 16 to 4096."""
    import numpy as np

    rows = np.zeros((len(weighted), dims), dtype=np.float32)
    for start in range(0, len(weighted), _BATCH_SIZE):
        rows[start : start + _BATCH_SIZE] = normalize_rows(
            _sum_terms(weighted[start : start + _BATCH_SIZE], dims)
        )
    return rows


def _sum_terms(weighted: Sequence[Mapping[str, float]], dims: int) -> NDArray[np.float64]:
    import numpy as np

    block = dims // _HASH_PLACES
    codes = b"".join([_hash_places(term, block) for terms in weighted for term in terms])
    weights = np.array([weight for terms in weighted for weight in terms.values()], dtype=np.float64)
    first = np.repeat(
        np.arange(len(weighted)) * (2 * dims), [len(terms) * _HASH_PLACES for terms in weighted]
    )
    summed = np.bincount(
        np.frombuffer(codes, dtype=np.int32) + first,
        weights=np.repeat(weights, _HASH_PLACES),
        minlength=len(weighted) * 2 * dims,
    ).reshape(len(weighted), 2, dims)
    return np.asarray(summed[:, 0] - summed[:, 1], dtype=np.float64)


@lru_cache(maxsize=16_384)
def _hash_places(term: str, block: int) -> bytes:
    """Return the places of a term as int32: those below ``16 * block`` add, the others subtract."""
    import numpy as np

    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=2 * _HASH_PLACES).digest()
    hashes = np.frombuffer(digest, dtype="<u2").astype(np.int32)
    places = (hashes & (block - 1)) + np.arange(_HASH_PLACES, dtype=np.int32) * block
    return (places + (hashes >> 15) * (block * _HASH_PLACES)).astype(np.int32).tobytes()


def normalize_rows(rows: NDArray[Any]) -> Vectors:
    """Return the rows scaled to length 1 as float32; a row of zeros stays zero."""
    import numpy as np

    wide = np.asarray(rows, dtype=np.float64)
    length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    length[length == 0] = 1.0
    return np.asarray(wide / length, dtype=np.float32)


def compute_content_hash(kind: str, *parts: bytes) -> str:
    """Return a version: ``kind`` and sixteen hexadecimal digits of the SHA-256 of the learnt state."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"{kind.split()[0]}-{digest.hexdigest()[:16]}"
