"""Randomised trees (Geurts et al. 2006; Breiman 2001), grown by scikit-learn and stored as plain arrays.

A run has few rows, and scikit-learn's forests take milliseconds for any number of rows. NumPy traverses the
flattened trees in a fraction of a millisecond, and arrays can be stored without pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_MIN_PROBABILITY = 0.01


@dataclass(frozen=True, slots=True)
class Forest:
    """Flattened trees: nodes of all trees in one array; both children of a leaf are the leaf itself.

    Attributes:
        columns: columns of the table that the trees read.
        feature, threshold, left, right: split and children of each node.
        value: share of the positive class in each node.
        roots: node of each tree's root.
        depth: depth of the deepest tree.
    """

    columns: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: Array
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float32]
    roots: NDArray[np.int32]
    depth: int

    def predict_probability(self, values: Array) -> Array:
        """Return the mean share of the positive class over the trees; shape ``(rows,)``."""
        # scikit-learn compares single-precision values with double-precision thresholds.
        rows = values[:, self.columns].astype(np.float32).astype(np.float64)
        nodes = np.broadcast_to(self.roots, (len(rows), len(self.roots))).copy()
        number = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            goes_left = rows[number, self.feature[nodes]] <= self.threshold[nodes]
            nodes = np.where(goes_left, self.left[nodes], self.right[nodes])
        return np.asarray(self.value[nodes].mean(axis=1), dtype=np.float64)

    def score(self, values: Array) -> Array:
        """Return the logarithm of the probability plus 0.01, so that it is finite; shape ``(rows,)``."""
        return np.asarray(np.log(self.predict_probability(values) + _MIN_PROBABILITY))


def fit_forest(
    values: Array,
    positive: Array,
    *,
    columns: list[int],
    kind: Literal["extra", "random"],
    trees: int,
    share: float,
    leaf: int = 4,
    seed: int = 0,
) -> Forest:
    """Fit a forest to the given columns. Classes are balanced; equal seeds give equal forests.

    Args:
        values: features, shape ``(rows, columns)``.
        positive: label of each row; above 0 is the positive class.
        columns: columns that the trees read.
        kind: extremely randomised trees, or a random forest.
        trees: number of trees.
        share: share of the columns that are candidates at each split.
        leaf: minimum of rows in a leaf.
        seed: seed of the trees.
    """
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    grown = (
        ExtraTreesClassifier(
            trees, min_samples_leaf=leaf, max_features=share, class_weight="balanced", random_state=seed
        )
        if kind == "extra"
        else RandomForestClassifier(
            trees,
            min_samples_leaf=leaf,
            max_features=share,
            class_weight="balanced_subsample",
            random_state=seed,
        )
    )
    grown.fit(values[:, columns], positive > 0)
    return _flatten([estimator.tree_ for estimator in grown.estimators_], columns)


def _flatten(trees: list[object], columns: list[int]) -> Forest:
    feature, threshold, left, right, value, roots = [], [], [], [], [], []
    base = 0
    for tree in trees:
        count = tree.node_count  # type: ignore[attr-defined]
        node_indices = np.arange(count)
        leaf = tree.children_left < 0  # type: ignore[attr-defined]
        shares = tree.value[:, 0, :]  # type: ignore[attr-defined]
        feature.append(np.where(leaf, 0, tree.feature))  # type: ignore[attr-defined]
        threshold.append(np.where(leaf, 0.0, tree.threshold))  # type: ignore[attr-defined]
        left.append(np.where(leaf, node_indices, tree.children_left) + base)  # type: ignore[attr-defined]
        right.append(np.where(leaf, node_indices, tree.children_right) + base)  # type: ignore[attr-defined]
        value.append(shares[:, -1] / shares.sum(axis=1))
        roots.append(base)
        base += count
    return Forest(
        columns=np.asarray(columns, dtype=np.int32),
        feature=np.concatenate(feature).astype(np.int32),
        threshold=np.concatenate(threshold).astype(np.float64),
        left=np.concatenate(left).astype(np.int32),
        right=np.concatenate(right).astype(np.int32),
        value=np.concatenate(value).astype(np.float32),
        roots=np.asarray(roots, dtype=np.int32),
        depth=max(int(tree.max_depth) for tree in trees),  # type: ignore[attr-defined]
    )
