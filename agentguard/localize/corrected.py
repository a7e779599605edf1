"""Probabilities corrected by what people said: the localizer of a store in which diagnoses were judged.

The probability that a run failed is put through a line in log-odds (Platt 1999), the probabilities of its
steps through a temperature (Guo et al. 2017, arXiv 1706.04599). Both are pulled towards changing nothing, as
if a few more judgements had confirmed them: some judgements bend them a little, many as far as they say.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.errors import StoreError
from agentguard.localize.base import Diagnosis, Localizer, Verdict
from agentguard.localize.feedback import Truth, truths
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store

MIN_OUTCOMES: Final = 20
"""Judged outcomes below which probabilities of failure stay as they are."""
MIN_EACH: Final = 5
"""Of these, runs that failed, and runs that did not."""
MIN_STEPS: Final = 20
"""Judged root causes, among the hypotheses, below which probabilities of steps stay as they are."""

_PRIOR: Final = 2.0
_FLATTEST: Final = 0.05
_TEMPERATURES: Final = tuple(math.exp(x / 20) for x in range(-24, 25))
_CLIP: Final = 0.005
_ANEW_S: Final = 600.0
_SLOPE, _INTERCEPT, _TEMPERATURE, _JUDGED = "slope", "intercept", "temperature", "judged"

Outcome = tuple[float, bool]
"""A probability of failure before any correction, and whether the run failed."""

Ranked = tuple[tuple[float, ...], int]
"""Probabilities of hypotheses before any correction, and which of them was right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What judgements showed of the probabilities of one method.

    Attributes:
        method: name of the localizer.
        failed, passed: judged outcomes.
        steps: judged root causes that were among the hypotheses.
        slope, intercept: of the log-odds of failure; 1 and 0 change nothing.
        temperature: exponent of the probabilities of steps; 1 changes nothing.
        brier_before, brier_after: mean squared error of the probability of failure, after the correction on
            runs it was not learnt from; None with too few.
    """

    method: str
    failed: int = 0
    passed: int = 0
    steps: int = 0
    slope: float = 1.0
    intercept: float = 0.0
    temperature: float = 1.0
    brier_before: float | None = None
    brier_after: float | None = None

    @property
    def corrects_outcomes(self) -> bool:
        """Whether there are enough judged outcomes."""
        return self.failed + self.passed >= MIN_OUTCOMES and min(self.failed, self.passed) >= MIN_EACH

    @property
    def corrects_steps(self) -> bool:
        """Whether there are enough judged root causes."""
        return self.steps >= MIN_STEPS

    def applied(self, diagnosis: Diagnosis) -> Diagnosis:
        """A diagnosis with corrected probabilities; a verdict that they contradict becomes an abstention."""
        if not (self.corrects_outcomes or self.corrects_steps) or not 0 < diagnosis.probability < 1:
            return diagnosis
        p = _bent(diagnosis.probability, self.slope, self.intercept)
        steps = _tempered([one.probability for one in diagnosis.hypotheses], self.temperature)
        contradicted = (diagnosis.verdict is Verdict.FAILURE and p < 0.5) or (
            diagnosis.verdict is Verdict.NO_FAILURE and p > 0.5
        )
        judged = max(self.failed + self.passed, self.steps)
        note = f"probabilities are corrected by {judged} judgements of people"
        if contradicted:
            note += ", which contradict the verdict of the method: it abstains"
        return replace(
            diagnosis,
            probability=p,
            verdict=Verdict.ABSTAINED if contradicted else diagnosis.verdict,
            hypotheses=tuple(
                replace(one, probability=q) for one, q in zip(diagnosis.hypotheses, steps, strict=True)
            ),
            notes=(*diagnosis.notes, note),
            recalibrated={
                _SLOPE: self.slope,
                _INTERCEPT: self.intercept,
                _TEMPERATURE: self.temperature,
                _JUDGED: float(judged),
            },
        )


class Corrected:
    """A localizer whose probabilities learn from the judgements of a store.

    Judgements are read when the first run is diagnosed, and again every ten minutes. While the store cannot
    be read, what was learnt before stands.

    Args:
        localizer: gives the diagnoses.
        store: where people's judgements are.
        tenant: whose.
        anew_s: seconds after which judgements are read again.
    """

    def __init__(
        self, localizer: Localizer, store: Store, *, tenant: str = "", anew_s: float = _ANEW_S
    ) -> None:
        self.localizer, self._store, self._tenant, self._anew_s = localizer, store, tenant, anew_s
        self._lock = threading.Lock()
        self._held: dict[str, Correction] = {}
        self._read_at: float | None = None

    @property
    def name(self) -> str:
        """The localizer's."""
        return self.localizer.name

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """The localizer's diagnosis, corrected where enough was judged."""
        diagnosis = self.localizer.locate(trajectory, findings)
        correction = self._corrections().get(diagnosis.method)
        return diagnosis if correction is None else correction.applied(diagnosis)

    def _corrections(self) -> dict[str, Correction]:
        with self._lock:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at > self._anew_s:
                self._read_at = now
                try:
                    found = corrections(truths(self._store, tenant=self._tenant))
                    self._held = {one.method: one for one in found}
                except StoreError:
                    pass
            return self._held


def corrections(judged: Iterable[Truth]) -> tuple[Correction, ...]:
    """What judgements show of each method, by name; with too few of them its correction changes nothing."""
    by_method: dict[str, list[Truth]] = {}
    for one in judged:
        by_method.setdefault(one.diagnosis.method, []).append(one)
    return tuple(_correction(method, found) for method, found in sorted(by_method.items()))


def _correction(method: str, judged: Sequence[Truth]) -> Correction:
    outcomes = [
        (_raw_outcome(one.diagnosis), one.failed)
        for one in judged
        if one.failed is not None and 0 < one.diagnosis.probability < 1
    ]
    ranked = [found for one in judged if (found := _ranked(one)) is not None]
    failed = sum(truth for _, truth in outcomes)
    made = Correction(method=method, failed=failed, passed=len(outcomes) - failed, steps=len(ranked))
    if made.corrects_outcomes:
        slope, intercept = _line(outcomes)
        before, after = _brier(outcomes)
        made = replace(made, slope=slope, intercept=intercept, brier_before=before, brier_after=after)
    return replace(made, temperature=_temperature(ranked)) if made.corrects_steps else made


def _raw_outcome(diagnosis: Diagnosis) -> float:
    """The probability as the method gave it, whatever it was corrected by when it was made."""
    held = diagnosis.recalibrated
    slope, intercept = held.get(_SLOPE, 1.0), held.get(_INTERCEPT, 0.0)
    return _logistic((_log_odds(diagnosis.probability) - intercept) / max(slope, _FLATTEST))


def _ranked(one: Truth) -> Ranked | None:
    steps = [hypothesis.step for hypothesis in one.diagnosis.hypotheses]
    if one.step is None or one.step not in steps or len(steps) < 2:
        return None
    was = one.diagnosis.recalibrated.get(_TEMPERATURE, 1.0)
    given = [hypothesis.probability for hypothesis in one.diagnosis.hypotheses]
    return tuple(_tempered(given, 1 / max(was, 0.01))), steps.index(one.step)


def _line(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Slope and intercept of least log-loss, with a ridge towards 1 and 0, by Newton's method."""
    slope, intercept = 1.0, 0.0
    points = [(_log_odds(p), float(failed)) for p, failed in outcomes]
    for _ in range(50):
        g1, g0 = _PRIOR * (slope - 1.0), _PRIOR * intercept
        h11, h10, h00 = _PRIOR, 0.0, _PRIOR
        for x, y in points:
            p = _logistic(slope * x + intercept)
            w = p * (1 - p)
            g1, g0 = g1 + (p - y) * x, g0 + p - y
            h11, h10, h00 = h11 + w * x * x, h10 + w * x, h00 + w
        determinant = h11 * h00 - h10 * h10
        d1, d0 = (h00 * g1 - h10 * g0) / determinant, (h11 * g0 - h10 * g1) / determinant
        # Bounded: far from the minimum a whole step of Newton's may leap over it.
        scale = min(1.0, 1.0 / max(abs(d1), abs(d0), 1e-12))
        slope, intercept = slope - scale * d1, intercept - scale * d0
        if max(abs(d1), abs(d0)) < 1e-9:
            break
    return max(_FLATTEST, slope), intercept


def _brier(outcomes: Sequence[Outcome], folds: int = 5) -> tuple[float, float]:
    """Mean squared error before, and after a correction learnt from the other folds."""
    before = sum((p - y) ** 2 for p, y in outcomes) / len(outcomes)
    after = 0.0
    for fold in range(folds):
        slope, intercept = _line([one for place, one in enumerate(outcomes) if place % folds != fold])
        held = outcomes[fold::folds]
        after += sum((_bent(p, slope, intercept) - y) ** 2 for p, y in held)
    return before, after / len(outcomes)


def _temperature(ranked: Sequence[Ranked]) -> float:
    """The exponent of least log-loss over a grid, pulled towards 1."""

    def loss(temperature: float) -> float:
        total = _PRIOR * math.log(temperature) ** 2 / 2
        for given, right in ranked:
            total -= math.log(max(_tempered(given, temperature)[right], 1e-12))
        return total

    return min(_TEMPERATURES, key=lambda one: (round(loss(one), 12), abs(math.log(one))))


def _tempered(given: Sequence[float], temperature: float) -> list[float]:
    """Probabilities to a power, with the sum they had."""
    if temperature == 1.0 or not given:
        return list(given)
    total = sum(given)
    raised: list[Any] = [max(p, 0.0) ** temperature for p in given]
    scale = total / sum(raised) if sum(raised) > 0 else 0.0
    return [min(1.0, float(p * scale)) for p in raised]


def _bent(p: float, slope: float, intercept: float) -> float:
    return _logistic(slope * _log_odds(p) + intercept)


def _log_odds(p: float) -> float:
    held = min(1 - _CLIP, max(_CLIP, p))
    return math.log(held / (1 - held))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
