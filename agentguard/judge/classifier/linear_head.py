"""Linear classification head: probabilities from the vectors of an embedding model.

A multinomial logistic regression over its vectors turns a general embedding model into a classifier. No other
model is trained or served. The file is JSON, so loading it runs no code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from agentguard.errors import ConfigError, JudgeError, ModelFileError

_HEAD_KIND = "agentguard classifier head 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHead:
    """Linear layer over a vector, followed by softmax.

    Attributes:
        options: meaning of the classes, in order.
        weights: one row for each class, as long as a vector.
        bias: one value for each class.

    Raises:
        ConfigError: the sizes do not agree, or a number is not finite.
    """

    options: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.weights}
        sizes = len(set(self.options)) == len(self.options) == len(self.weights) == len(self.bias) >= 2
        finite = all(math.isfinite(one) for row in (*self.weights, self.bias) for one in row)
        if not (sizes and len(lengths) == 1 and min(lengths) > 0 and finite):
            raise ConfigError("a classifier head needs a row of finite weights and a bias for each option")

    @property
    def vector_length(self) -> int:
        """Length of the input vectors."""
        return len(self.weights[0])

    def predict_probabilities(self, vector: Sequence[float]) -> tuple[float, ...]:
        """Return the probability of each option, in order; they sum to 1."""
        logits = [
            math.fsum(a * b for a, b in zip(row, vector, strict=True)) + bias
            for row, bias in zip(self.weights, self.bias, strict=True)
        ]
        top = max(logits)
        masses = [math.exp(one - top) for one in logits]
        return tuple(mass / math.fsum(masses) for mass in masses)

    def save(self, path: Path) -> None:
        """Write the head as JSON."""
        path.write_bytes(orjson.dumps({"kind": _HEAD_KIND, **asdict(self)}))

    @classmethod
    def load(cls, path: Path) -> LinearHead:
        """Load a head. Raises ModelFileError if the file is not one."""
        try:
            data: Any = orjson.loads(path.read_bytes())
            if data.pop("kind") != _HEAD_KIND:
                raise ValueError
            rows = tuple(tuple(map(float, row)) for row in data["weights"])
            return cls(options=tuple(data["options"]), weights=rows, bias=tuple(map(float, data["bias"])))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ConfigError):
            raise ModelFileError(f"{path} is not a classifier head") from None

    @classmethod
    def fit(
        cls, vectors: Sequence[Sequence[float]], labels: Sequence[str], *, inverse_ridge: float = 10.0
    ) -> LinearHead:
        """Fit a head to vectors and the correct option of each.

        Raises:
            JudgeError: fewer than two options occur.
        """
        from sklearn.linear_model import LogisticRegression

        options = sorted(set(labels))
        if len(options) < 2:
            raise JudgeError("a classifier head needs examples of at least two options")
        fitted = LogisticRegression(C=inverse_ridge, max_iter=1_000).fit(vectors, list(labels))
        rows, bias = fitted.coef_.tolist(), fitted.intercept_.tolist()
        if len(options) == 2:  # for two classes scikit-learn stores only the second row
            rows, bias = [[0.0] * len(rows[0]), rows[0]], [0.0, bias[0]]
        return cls(options=tuple(options), weights=tuple(map(tuple, rows)), bias=tuple(bias))
