"""A classifier's last layer, kept beside the judge: probabilities from the vectors of an embedding model.

So a general embedding model becomes a classifier of one's own without training, or serving, another model: a
multinomial logistic regression over its vectors. It is stored as JSON, which runs no code.
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
    """Linear over a vector, then softmax.

    Attributes:
        options: what the classes mean, in order.
        weights: a row for each class, as long as a vector.
        bias: one for each class.

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
        """Of the vectors that it reads."""
        return len(self.weights[0])

    def predict_probabilities(self, vector: Sequence[float]) -> tuple[float, ...]:
        """The probability of each option, in order; they sum to 1."""
        logits = [
            math.fsum(a * b for a, b in zip(row, vector, strict=True)) + bias
            for row, bias in zip(self.weights, self.bias, strict=True)
        ]
        top = max(logits)
        masses = [math.exp(one - top) for one in logits]
        return tuple(mass / math.fsum(masses) for mass in masses)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_bytes(orjson.dumps({"kind": _HEAD_KIND, **asdict(self)}))

    @classmethod
    def load(cls, path: Path) -> LinearHead:
        """Read it. Raises ModelFileError if the file holds none."""
        try:
            held: Any = orjson.loads(path.read_bytes())
            if held.pop("kind") != _HEAD_KIND:
                raise ValueError
            rows = tuple(tuple(map(float, row)) for row in held["weights"])
            return cls(options=tuple(held["options"]), weights=rows, bias=tuple(map(float, held["bias"])))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ConfigError):
            raise ModelFileError(f"{path} holds no classifier head") from None

    @classmethod
    def fit(
        cls, vectors: Sequence[Sequence[float]], labels: Sequence[str], *, inverse_ridge: float = 10.0
    ) -> LinearHead:
        """Learn it from vectors and the option that is right for each.

        Raises:
            JudgeError: fewer than two options occur.
        """
        from sklearn.linear_model import LogisticRegression

        options = sorted(set(labels))
        if len(options) < 2:
            raise JudgeError("a classifier head needs examples of at least two options")
        fitted = LogisticRegression(C=inverse_ridge, max_iter=1_000).fit(vectors, list(labels))
        rows, bias = fitted.coef_.tolist(), fitted.intercept_.tolist()
        if len(options) == 2:  # scikit-learn keeps the second class's row alone
            rows, bias = [[0.0] * len(rows[0]), rows[0]], [0.0, bias[0]]
        return cls(options=tuple(options), weights=tuple(map(tuple, rows)), bias=tuple(bias))
