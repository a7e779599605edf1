"""Combined vectors of text and traits, so that one product compares both.

Each part is scaled to length 1 and weighted by the square root of its share. The cosine of two such vectors
is then ``(1 - share) * cosine of the texts + share * cosine of the traits``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError, InputError
from agentguard.schemata.model import ErrorSchema, Profile
from agentguard.schemata.vectors.base import Vectoriser, project_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.schemata.vectors.base import Vectors

SchemaQuery = str | Profile | ErrorSchema
"""Query of a search: a text, the profile of a step, or another schema."""

TRAIT_DIMENSIONS: Final = 128

_BATCH_SIZE: Final = 512
"""Number of items in one batch, which bounds the memory beyond the vectors."""


def extract_text(item: SchemaQuery) -> str:
    """Return the text for the vectoriser."""
    if isinstance(item, str):
        return item
    return item.to_text() if isinstance(item, ErrorSchema) else item.text


def encode_combined(items: Sequence[SchemaQuery], vectoriser: Vectoriser, *, trait_weight: float) -> Vectors:
    """Return the vectors of text and traits.

    Args:
        items: items to encode.
        vectoriser: vectoriser of the texts.
        trait_weight: share of traits in [0, 1]; 0 gives the vectors of the texts alone.

    Returns:
        float32 of shape (n, d) or, with traits, (n, d + 128); (0, 1) for no items. Rows have length 1; the
        row of an item without a known word and without a trait is all zero. If a part is missing, the other
        part gets the full length.

    Raises:
        InputError: an item is not a valid query, or the weight of a trait is not a finite number.
        ConfigError: the vectoriser did not return a finite row for each text.
    """
    import numpy as np

    for index, item in enumerate(items):
        if not isinstance(item, str | Profile | ErrorSchema):
            raise InputError(f"{type(item).__name__} is not a valid query", record=index)
    parts = [
        _encode_batch(items[start : start + _BATCH_SIZE], vectoriser, trait_weight, start)
        for start in range(0, len(items), _BATCH_SIZE)
    ]
    if len({part.shape[1] for part in parts}) > 1:
        raise ConfigError(f"vectoriser {vectoriser.name!r} changed the length of its vectors")
    return np.concatenate(parts) if parts else np.zeros((0, 1), dtype=np.float32)


def _encode_batch(items: Sequence[SchemaQuery], vectoriser: Vectoriser, share: float, first: int) -> Vectors:
    import numpy as np

    texts, length = _encode_texts([extract_text(item) for item in items], vectoriser)
    has_text = length > 0
    norms = np.where(has_text, length, 1.0)
    if share == 0:
        return (texts / norms[:, None]).astype(np.float32)
    trait_rows = [_encode_traits(item, first + index) for index, item in enumerate(items)]
    has_traits = np.array([bool(trait_terms) for trait_terms in trait_rows])
    rows = np.empty((len(texts), texts.shape[1] + TRAIT_DIMENSIONS), dtype=np.float32)
    rows[:, :-TRAIT_DIMENSIONS] = texts * (np.where(has_traits, (1 - share) ** 0.5, 1.0) / norms)[:, None]
    rows[:, -TRAIT_DIMENSIONS:] = (
        project_terms(trait_rows, TRAIT_DIMENSIONS) * np.where(has_text, share**0.5, 1.0)[:, None]
    )
    return rows


def _encode_traits(item: SchemaQuery, place: int) -> Mapping[str, float]:
    if isinstance(item, str):
        return {}
    for name, weight in item.traits.items():
        if not isfinite(weight):
            raise InputError("the weight is not finite", record=place, field=f"traits.{name}")
    return {name: weight for name, weight in item.traits.items() if weight}


def _encode_texts(
    texts: Sequence[str], vectoriser: Vectoriser
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the vectors of the vectoriser, and the length of each row."""
    import numpy as np

    rows = np.asarray(vectoriser.encode(texts), dtype=np.float64)
    if rows.ndim == 2 and len(rows) == len(texts):
        length = np.sqrt((rows * rows).sum(axis=1))
        if np.isfinite(length).all():
            return rows, length
    raise ConfigError(f"vectoriser {vectoriser.name!r} did not return a finite row for each text")
