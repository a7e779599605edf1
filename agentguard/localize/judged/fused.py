"""``fused``: the embedded ranker and a judge, each heard as far as it has shown to be worth.

The embedded model knows structure and costs nothing; a judge understands what is said. Either of the two is
right far more often than one alone, but a weak judge drags a good ranker down: so how much the judge counts
is a weight on its log-probabilities, learnt out of fold from annotated runs of one's own (`Fused.fit`). The
judge is asked two questions, whether the run failed and which turn it was (`structured`), after one reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.detect.run import detect
from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.base import RUN_FAILED, Judge
from agentguard.localize.base import Diagnosis, Verdict
from agentguard.localize.embedded import DEFAULT_RISK, Embedded
from agentguard.localize.judged import structured
from agentguard.localize.judged.asking import Asking
from agentguard.localize.judged.method import verdict_of
from agentguard.localize.judged.named import judge_of
from agentguard.localize.ranking import reject
from agentguard.trajectory.model import Record, Trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEIGHT: Final = 0.3
"""What a judge's log-probability counts beside the ranker's before `Fused.fit` has learnt it; see
docs/judged-localizers.md for what it is with recorded judges of known quality."""

_FLOOR: Final = 0.01


class Fused:
    """Ranks steps by a trained model and a judge.

    Args:
        model: folder of a model file and its card; None is the model that ships with agentguard.
        weight: of the judge's log-probabilities, at least 0, until `fit` learns it.
        risk, seed, given_failed: as for ``embedded``.
        options: those of `judge_of`.

    Raises:
        ConfigError: an option does not exist or is out of its range, or no judge is named.
        ModelFileError: as for ``embedded``.
    """

    name = "fused"

    def __init__(
        self,
        *,
        model: str | None = None,
        weight: float = WEIGHT,
        risk: float = DEFAULT_RISK,
        given_failed: bool = False,
        **options: Any,
    ) -> None:
        seed = options.pop("seed", 0)
        self.judge: Judge = judge_of(self.name, options)
        reject(self.name, options)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 10:
            raise ConfigError(f"localizer 'fused': weight is {weight!r}, expected a number from 0 to 10")
        self.weight, self.seed, self.given_failed = float(weight), int(seed), bool(given_failed)
        self._embedded = Embedded(model=model, risk=risk, seed=self.seed, given_failed=self.given_failed)

    def fit(self, records: Sequence[Record]) -> Fused:
        """Train the ranker, and learn what the judge is worth beside it; asks the judge about every run."""
        from agentguard.judge.train import train, untrained

        def heard(record: Record) -> NDArray[Any]:
            run = record.trajectory
            return self.signal(Asking(self.judge), run, detect(run).findings)

        try:
            model = train(records, seed=self.seed, signals=heard)
        except JudgeError:
            model = untrained()
        fitted = type(self).__new__(type(self))
        fitted.__dict__.update(self.__dict__)
        fitted._embedded = Embedded.of(model, risk=self._embedded.risk, seed=self.seed)
        fitted._embedded.given_failed = self.given_failed
        return fitted

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run; a judge that is away leaves it to the embedded model, and a note says so."""
        if not trajectory.steps:
            return replace(self._embedded.locate(trajectory, findings), method=self.name)
        asking = Asking(self.judge)
        failed = None if self.given_failed else asking.yes(trajectory, RUN_FAILED)
        away = failed is None and not self.given_failed
        signals = None if away else self.signal(asking, trajectory, findings)
        model = self._embedded.model.listens([self.weight])
        judged = model.judge(trajectory, findings, risk=self._embedded.risk, signals=signals)
        told = self._embedded.told(trajectory, judged, findings)
        if failed is not None and not judged.known_outcome:
            told = _both(
                told, self._embedded.told(trajectory, replace(judged, failed=1.0), findings), failed, findings
            )
        note = ("the judge could not be asked; this is the embedded model alone",) if away else ()
        return replace(
            told,
            method=self.name,
            usage=asking.spent,
            failures=(*told.failures, *asking.failures),
            notes=(*told.notes, *note),
        )

    def signal(self, asking: Asking, run: Trajectory, findings: Sequence[Finding]) -> NDArray[Any]:
        """Log-probability that the judge gives each candidate step; all 0 where it could not answer.

        Shape (candidates, 1), rows as in `agentguard.judge.features.table.step_table`.
        """
        import numpy as np

        from agentguard.judge.features.table import step_table

        steps = step_table(run).steps
        said = structured.ask(asking, run, findings).steps if steps else {}
        return np.array(column(said, steps), dtype=np.float64).reshape(len(steps), 1)


def column(said: Mapping[int, float], steps: Sequence[int]) -> list[float]:
    """Log-probabilities of some steps; none below that of `_FLOOR`, since no judge rules a step out."""
    if not said:
        return [0.0] * len(steps)
    return [math.log(max(_FLOOR, said.get(step, 0.0))) for step in steps]


def _both(told: Diagnosis, ranked: Diagnosis, failed: float, findings: Sequence[Finding]) -> Diagnosis:
    """Where the model knows no outcomes of this kind of log: half its odds, and half the judge's."""
    together = _sigmoid(0.5 * (_log_odds(told.probability) + _log_odds(failed)))
    verdict, note = verdict_of(together, findings)
    hypotheses = () if verdict is Verdict.NO_FAILURE else ranked.hypotheses
    return replace(
        told, verdict=verdict, probability=together, hypotheses=hypotheses, notes=(*told.notes, *note)
    )


def _log_odds(probability: float) -> float:
    held = min(1 - 1e-6, max(1e-6, probability))
    return math.log(held / (1 - held))


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))
