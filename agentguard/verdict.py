"""Verdicts on runs: the same words in reports, files, the store and the viewer."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

NOT_DIAGNOSED: Final = "not_diagnosed"
"""Word for a run without a diagnosis, in the place of its verdict."""


class Verdict(StrEnum):
    """Outcome that a diagnosis assigns to a run; `Verdict` accepts the names of earlier versions, too."""

    FAILED = "failed"
    NO_FAILURE_FOUND = "no_failure_found"
    UNDECIDED = "undecided"

    @classmethod
    def from_score(cls, score: float, *, low: float, high: float) -> Verdict:
        """Return FAILED above ``high``, NO_FAILURE_FOUND up to ``low`` (included), UNDECIDED between them."""
        if score > high:
            return cls.FAILED
        return cls.NO_FAILURE_FOUND if score <= low else cls.UNDECIDED

    @property
    def label(self) -> str:
        """Words for reports."""
        return describe_verdict(self)

    @classmethod
    def _missing_(cls, value: object) -> Verdict | None:
        return _EARLIER_NAMES.get(value) if isinstance(value, str) else None


_EARLIER_NAMES: Final = {
    "failure": Verdict.FAILED,
    "no_failure": Verdict.NO_FAILURE_FOUND,
    "abstained": Verdict.UNDECIDED,
}
"""Names in stores, tables and bundles that earlier versions wrote."""


def upgrade_verdict(name: str) -> str:
    """Return the current name of a verdict; any other text unchanged."""
    return _EARLIER_NAMES.get(name, name)


def describe_verdict(name: str) -> str:
    """Return the words for the name of a verdict; an empty name is a run without a diagnosis."""
    return (name or NOT_DIAGNOSED).replace("_", " ")
