"""Samples of long parameter lists: a few cases per commit, all of them in ``make test-all``."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def sample_cases(cases: Sequence[T], count: int) -> list[T]:
    """Return ``count`` cases chosen by the commit, in their order; all cases with ``AGENTGUARD_TEST_ALL``.

    The choice is the same on every worker of a run. Successive commits choose other cases.
    """
    if os.environ.get("AGENTGUARD_TEST_ALL") or count >= len(cases):
        return list(cases)
    chosen = random.Random(_commit()).sample(range(len(cases)), count)
    return [cases[index] for index in sorted(chosen)]


def sample_groups(cases: Sequence[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return one case of each group, chosen by the commit; all cases with ``AGENTGUARD_TEST_ALL``."""
    if os.environ.get("AGENTGUARD_TEST_ALL"):
        return list(cases)
    groups: dict[Hashable, list[T]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    rng = random.Random(_commit())
    return [rng.choice(group) for group in groups.values()]


@cache
def _commit() -> str:
    root = Path(__file__).parents[2]
    result = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or "no commit"
