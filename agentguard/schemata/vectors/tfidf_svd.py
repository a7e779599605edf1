"""``tfidf_svd``: latent semantic analysis of the texts of the schemata.

Terms in most schemata have a low weight, and terms that occur together share a direction (Deerwester et al.,
*Indexing by Latent Semantic Analysis*, 1990). Fitting needs scikit-learn; encoding needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import ConfigError, ModelFileError
from agentguard.options import reject_unknown_options
from agentguard.schemata.vectors.base import compute_content_hash, normalize_rows
from agentguard.schemata.vectors.tokenizer import extract_terms, validate_texts, weigh_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_TERMS: Final = 20_000
_MIN_SINGULAR_VALUE: Final = 1e-6
"""Directions with a singular value below this share of the largest are noise of the solver."""


class TfidfSvd:
    """TF-IDF of words and word pairs, reduced by a truncated singular value decomposition.

    Before `fit`, it has no words. After it, ``d`` is ``dims``, or fewer if the texts have fewer directions.

    Args:
        dims: maximum number of dimensions, in [1, 4096].
        seed: seed of the randomised solver; the same texts and seed give the same vectors on one machine.

    Raises:
        ConfigError: an option does not exist or is out of range.
    """

    name = "tfidf_svd"

    def __init__(self, *, dims: int = 256, seed: int = 0, **unknown: object) -> None:
        reject_unknown_options("vectoriser", self.name, unknown)
        if not isinstance(dims, int) or not 1 <= dims <= 4096:
            raise ConfigError(f"vectoriser 'tfidf_svd': dims is {dims!r}, expected a number in [1, 4096]")
        if not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise ConfigError(f"vectoriser 'tfidf_svd': seed is {seed!r}, expected a number in [0, 2**32)")
        self._dimensions, self._seed = dims, seed
        self._set_fitted((), None)

    def fit(self, texts: Sequence[str]) -> TfidfSvd:
        """Return a copy fitted to ``texts``; without a word in them, the copy has no words."""
        nonempty_texts = [text for text in validate_texts(texts) if extract_terms(text)]
        copy = TfidfSvd(dims=self._dimensions, seed=self._seed)
        if nonempty_texts:
            copy._set_fitted(*_factorize(nonempty_texts, self._dimensions, self._seed))
        return copy

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors of shape (n, d); words that `fit` did not see are ignored."""
        import numpy as np

        rows = np.zeros((len(texts), self._loadings.shape[1]), dtype=np.float64)
        for index, text in enumerate(validate_texts(texts)):
            term_weights = [
                (self._term_index[t], w) for t, w in weigh_terms(text).items() if t in self._term_index
            ]
            if term_weights:
                indices, weights = zip(*term_weights, strict=True)
                rows[index] = np.asarray(weights) @ self._loadings[list(indices)]
        return normalize_rows(rows)

    def options(self) -> Mapping[str, Any]:
        """Return ``dims`` and ``seed``."""
        return {"dims": self._dimensions, "seed": self._seed}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return ``terms``, UTF-8 with one term per line, and ``loadings``, float32 of shape (terms, d)."""
        import numpy as np

        joined = "\n".join(self._term_index).encode("utf-8", "surrogatepass")
        return {"terms": np.frombuffer(joined, dtype=np.uint8), "loadings": self._loadings}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> TfidfSvd:
        """Return a copy with the learnt arrays. Raises ModelFileError if the arrays do not match."""
        copy = TfidfSvd(dims=self._dimensions, seed=self._seed)
        try:
            joined = arrays["terms"].tobytes().decode("utf-8", "surrogatepass")
            terms = joined.split("\n") if joined else []
            loadings = arrays["loadings"]
        except (KeyError, UnicodeDecodeError):
            raise ModelFileError("a file of vectoriser 'tfidf_svd' lacks its terms or loadings") from None
        has_valid_shape = loadings.ndim == 2 and str(loadings.dtype) == "float32" and loadings.shape[1] >= 1
        if not has_valid_shape or len(loadings) != len(terms) or len(set(terms)) != len(terms):
            raise ModelFileError("terms and loadings of vectoriser 'tfidf_svd' do not match")
        copy._set_fitted(terms, loadings)
        return copy

    def _set_fitted(self, learnt: Sequence[str], loadings: NDArray[np.float32] | None) -> None:
        import numpy as np

        self._term_index = {term: index for index, term in enumerate(learnt)}
        self._loadings = np.zeros((0, 1), dtype=np.float32) if loadings is None else loadings
        arrays = self.arrays()
        shape = str(self._loadings.shape).encode()
        self.version = compute_content_hash(
            "tfidf_svd 1", arrays["terms"].tobytes(), shape, arrays["loadings"].tobytes()
        )


def _factorize(texts: Sequence[str], dims: int, seed: int) -> tuple[Sequence[str], NDArray[np.float32]]:
    """Return ``(terms, loadings)``; a loading is the inverse document frequency times the direction."""
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.utils.extmath import randomized_svd

    tfidf = TfidfVectorizer(analyzer=extract_terms, sublinear_tf=True, max_features=_MAX_TERMS)
    matrix = tfidf.fit_transform(texts)
    # More iterations than the default if there are many dimensions, to separate close directions.
    _, sizes, directions = randomized_svd(
        matrix, n_components=min(dims, *matrix.shape), n_iter=7, random_state=seed
    )
    significant = directions[sizes > _MIN_SINGULAR_VALUE * sizes[0]].T
    return tfidf.get_feature_names_out().tolist(), np.asarray(
        tfidf.idf_[:, None] * significant, dtype=np.float32, order="C"
    )
