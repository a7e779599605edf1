"""Digests of the runs that a model was trained on. They detect an evaluation on training data."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from agentguard.errors import ModelFileError
from agentguard.trajectory.model import Trajectory

_DIGEST_BYTES: Final = 6
"""Two of 10,000 different runs have the same digest with a probability of 2 in 10 million."""


def compute_run_digest(run: Trajectory) -> bytes:
    """Return the digest of a run: its task and the texts of its steps, without white space, id and format."""
    hasher = hashlib.sha256()
    for text in (run.task, *(step.content for step in run.steps)):
        hasher.update(" ".join(text.split()).encode("utf-8", "surrogatepass") + b"\0")
    return hasher.digest()[:_DIGEST_BYTES]


def encode_digests(runs: Iterable[Trajectory]) -> str:
    """Return the digests of runs in order as base64."""
    return base64.b64encode(b"".join(sorted({compute_run_digest(run) for run in runs}))).decode()


def decode_digests(card: Mapping[str, Any]) -> frozenset[bytes]:
    """Return the digests of all sources of a card. Raises ModelFileError if they are not base64."""
    digests: set[bytes] = set()
    for source in card.get("data", ()):
        try:
            data = base64.b64decode(source.get("run_digests", ""), validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ModelFileError("the card of the model has run digests that are not base64") from None
        digests.update(data[i : i + _DIGEST_BYTES] for i in range(0, len(data), _DIGEST_BYTES))
    return frozenset(digests)
