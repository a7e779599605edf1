"""From texts to vectors whose cosine says how alike the texts are: the seam, the registry, and what ships.

``hashing`` needs no training and is the default. ``tfidf_svd`` learns from the schemata's own texts,
``sentence`` uses a sentence-embedding model and ``endpoint`` asks an embeddings server. A package adds one
through the entry-point group ``agentguard.vectorisers``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from agentguard.errors import ConfigError
from agentguard.plugins import Registry
from agentguard.schemata.vectors.tokenizer import validate_texts, weigh_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

DEFAULT_VECTORISER: Final = "hashing"
_HASH_PLACES: Final = 16
"""Non-zero places a term has in its vector; two bytes of its digest decide each."""

_BATCH_SIZE: Final = 64
"""Texts sketched at once, so that many texts take no more memory than their vectors."""


class Vectoriser(Protocol):
    """Turns texts into vectors."""

    @property
    def name(self) -> str:
        """Name it is registered under."""
        ...

    @property
    def version(self) -> str:
        """Hash of its options and of all that it learnt; vectors of different versions do not compare."""
        ...

    def fit(self, texts: Sequence[str]) -> Vectoriser:
        """Return a copy that learnt from ``texts``, or itself if it learns nothing; deterministic."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors of ``texts``, float32 of shape (n, d); but for n = 0, d is the same for one version.

        Rows have length 1; the row of a text without a known word is all zero.
        """
        ...


class StorableVectoriser(Vectoriser, Protocol):
    """A vectoriser that `agentguard.schemata.vectors.model_io` can write and read back."""

    def options(self) -> Mapping[str, Any]:
        """What its factory must be called with; JSON values, and never a secret."""
        ...

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """What it learnt; empty if nothing."""
        ...

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> Vectoriser:
        """A copy with what was learnt. Raises ModelFileError if ``arrays`` are not what `arrays` gives."""
        ...


class VectoriserFactory(Protocol):
    """Makes a vectoriser from its options."""

    def __call__(self, **options: Any) -> Vectoriser:
        """Raise ConfigError on an option that does not exist or is out of its range."""
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
    """The registry of vectorisers: those in ``agentguard.schemata`` and installed ones."""
    return _REGISTRY


class HashingVectoriser:
    """Hashed counts of words and word pairs, projected to few dimensions; learns nothing.

    Each term has 16 fixed places, one in each sixteenth of the vector, with fixed signs (the block form of
    the sparse Johnson-Lindenstrauss transform, Kane and Nelson, 2014), so that no vocabulary and no
    projection matrix is held. Cosines differ from those of the counts themselves by about ``1 / sqrt(dims)``.

    Args:
        dims: length of a vector: 64, 128, 256, 512, 1024, 2048 or 4096.

    Raises:
        ConfigError: ``dims`` is another number, or an option does not exist.
    """

    name = "hashing"

    def __init__(self, *, dims: int = 256, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        if dims not in (64, 128, 256, 512, 1024, 2048, 4096):
            raise ConfigError(f"vectoriser 'hashing': dims is {dims!r}, expected a power of 2 in [64, 4096]")
        self._dims = dims
        self.version = compute_content_hash("hashing 1", str(dims).encode())

    def fit(self, texts: Sequence[str]) -> HashingVectoriser:
        """Itself: there is nothing to learn."""
        validate_texts(texts)
        return self

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (n, dims); see `Vectoriser.encode`."""
        return project_terms([weigh_terms(text) for text in validate_texts(texts)], self._dims)

    def options(self) -> Mapping[str, Any]:
        """``dims``."""
        return {"dims": self._dims}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> HashingVectoriser:  # noqa: ARG002
        """Itself."""
        return self


def project_terms(weighted: Sequence[Mapping[str, float]], dims: int) -> Vectors:
    """Rows of length 1 that hold weighted terms; shape (n, dims), ``dims`` a power of two from 16 to 4096."""
    import numpy as np

    made = np.zeros((len(weighted), dims), dtype=np.float32)
    for start in range(0, len(weighted), _BATCH_SIZE):
        made[start : start + _BATCH_SIZE] = normalize_rows(
            _sum_terms(weighted[start : start + _BATCH_SIZE], dims)
        )
    return made


def _sum_terms(weighted: Sequence[Mapping[str, float]], dims: int) -> NDArray[np.float64]:
    import numpy as np

    block = dims // _HASH_PLACES
    codes = b"".join([_hash_places(term, block) for held in weighted for term in held])
    weights = np.array([weight for held in weighted for weight in held.values()], dtype=np.float64)
    first = np.repeat(np.arange(len(weighted)) * (2 * dims), [len(held) * _HASH_PLACES for held in weighted])
    summed = np.bincount(
        np.frombuffer(codes, dtype=np.int32) + first,
        weights=np.repeat(weights, _HASH_PLACES),
        minlength=len(weighted) * 2 * dims,
    ).reshape(len(weighted), 2, dims)
    return np.asarray(summed[:, 0] - summed[:, 1], dtype=np.float64)


@lru_cache(maxsize=16_384)
def _hash_places(term: str, block: int) -> bytes:
    """Places of a term as int32: those below ``16 * block`` count up, the others count down."""
    import numpy as np

    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=2 * _HASH_PLACES).digest()
    drawn = np.frombuffer(digest, dtype="<u2").astype(np.int32)
    places = (drawn & (block - 1)) + np.arange(_HASH_PLACES, dtype=np.int32) * block
    return (places + (drawn >> 15) * (block * _HASH_PLACES)).astype(np.int32).tobytes()


def normalize_rows(rows: NDArray[Any]) -> Vectors:
    """Rows brought to length 1 as float32; a row of zeros stays one."""
    import numpy as np

    wide = np.asarray(rows, dtype=np.float64)
    length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    length[length == 0] = 1.0
    return np.asarray(wide / length, dtype=np.float32)


def compute_content_hash(kind: str, *parts: bytes) -> str:
    """A version: ``kind`` and sixteen hexadecimal digits of the SHA-256 of what was learnt."""
    made = hashlib.sha256(kind.encode())
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return f"{kind.split()[0]}-{made.hexdigest()[:16]}"


def reject_unknown_options(name: str, unknown: Mapping[str, object]) -> None:
    """Raise ConfigError if there is an unknown option."""
    if unknown:
        raise ConfigError(f"vectoriser {name!r} has no option {sorted(unknown)[0]!r}")
