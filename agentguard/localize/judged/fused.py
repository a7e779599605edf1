"""``fused``: the embedded ranker and a judge, each heard as far as it has shown to be worth.

The embedded model knows structure and costs nothing; a judge understands what is said. Either of the two is
right far more often than one alone, but a weak judge drags a good ranker down: so how much the judge counts
is learnt out of fold from annotated runs of one's own (`Fused.fit`). What it says of a step is heard in
three ways (`SIGNALS`): how likely it holds the step, where the step stands in its order, and whether it comes
first. Both questions, whether the run failed and which step it was, go to the judge in one call with one
deadline. A judge that is away leaves the embedded model's verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.detect.run import detect
from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.base import RUN_FAILED, Choice, Judge, Question
from agentguard.judge.wire import ALPHABET
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

SIGNALS: Final = ("log-probability", "place in the order", "first")
"""What is heard of a judge's answer, a column each; see `columns`."""

WEIGHTS: Final = (0.1, 0.3, 0.15)
"""What they count beside the ranker before `Fused.fit` has learnt it: the mean of what was learnt with
recorded judges of known quality (docs/judged-localizers.md), rounded."""

_FLOOR: Final = 0.05
_RIDGE: Final = 3.0
"""How hard training shrinks the weights. Chosen with the columns, over all recorded judges at once."""


class Fused:
    """Ranks steps by a trained model and a judge.

    Args:
        model: folder of a model file and its card; None is the model that ships with agentguard.
        weight: times `WEIGHTS` the judge counts, from 0 to 10, until `fit` learns what it is worth.
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
        weight: float = 1.0,
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
            model = train(records, seed=self.seed, signals=heard, ridge=_RIDGE)
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
        failed, signals = self._heard(asking, trajectory, findings, outcome=not self.given_failed)
        model = self._embedded.model.listens([weight * self.weight for weight in WEIGHTS])
        judged = model.judge(trajectory, findings, risk=self._embedded.risk, signals=signals)
        told = self._embedded.told(trajectory, judged, findings)
        if failed is not None and not judged.known_outcome:
            told = _both(
                told, self._embedded.told(trajectory, replace(judged, failed=1.0), findings), failed, findings
            )
        return replace(
            told,
            method=self.name,
            usage=asking.spent,
            failures=(*told.failures, *asking.failures),
            notes=(*told.notes, *_away(failed, signals, asked=not self.given_failed)),
        )

    @property
    def at_once(self) -> Embedded:
        """The embedded model alone, for a run that is going on: nothing in it waits for a judge."""
        return self._embedded

    def signal(self, asking: Asking, run: Trajectory, findings: Sequence[Finding]) -> NDArray[Any]:
        """What the judge says of each candidate step; all 0 where it could not answer.

        Shape (candidates, 3), rows as in `agentguard.judge.features.table.step_table`.
        """
        import numpy as np

        signals = self._heard(asking, run, findings, outcome=False)[1]
        return np.zeros((len(_candidates(run)), len(SIGNALS))) if signals is None else signals

    def _heard(
        self, asking: Asking, run: Trajectory, findings: Sequence[Finding], *, outcome: bool
    ) -> tuple[float | None, NDArray[Any] | None]:
        """Whether the run failed, if that is asked, and the columns; None for what was not answered."""
        import numpy as np

        steps = _candidates(run)
        questions: list[Question] = [RUN_FAILED] if outcome else []
        if steps:
            questions.append(_question(run, steps, findings))
        answers = list(asking.ask(run, questions))
        first = answers.pop(0) if outcome else None
        failed = None if first is None or first.error is not None else first.probabilities["yes"]
        if not answers or answers[0].error is not None:
            return failed, None
        said = _by_step(run, steps, answers[0].probabilities)
        return failed, np.array(columns(said, steps), dtype=np.float64).reshape(len(steps), len(SIGNALS))


def columns(said: Mapping[int, float], steps: Sequence[int]) -> list[tuple[float, float, float]]:
    """`SIGNALS` of some steps: log p, -log(1 + place), and 1 for the first one.

    No probability counts as less than `_FLOOR`, since no judge rules a step out. Places are counted from 0;
    steps of one probability share the middle of theirs.
    """
    held = [said.get(step, 0.0) for step in steps]
    places = [sum(q > p for q in held) + (sum(q == p for q in held) - 1) / 2 for p in held]
    return [
        (math.log(max(_FLOOR, p)), -math.log1p(place), float(place == 0))
        for p, place in zip(held, places, strict=True)
    ]


def _candidates(run: Trajectory) -> tuple[int, ...]:
    from agentguard.judge.features.table import step_table

    return step_table(run).steps


def _question(run: Trajectory, steps: Sequence[int], findings: Sequence[Finding]) -> Choice:
    """Which step it was; which turn, where the steps would not go into one call."""
    turns = structured.candidates(run)
    by_turn = structured.question(run, turns, findings)
    if len(steps) > len(ALPHABET):
        return by_turn
    text = by_turn.text.replace("turn", "step")
    return replace(by_turn, id="root_cause_step", text=text, options=tuple(f"step {step}" for step in steps))


def _by_step(run: Trajectory, steps: Sequence[int], said: Mapping[str, float]) -> Mapping[int, float]:
    if len(steps) > len(ALPHABET):
        return structured.shared(structured.candidates(run), said)
    return {step: said.get(f"step {step}", 0.0) for step in steps}


def _away(failed: float | None, signals: object, *, asked: bool) -> tuple[str, ...]:
    """What a person should know of a judge that gave less than it was asked for."""
    if signals is None and (failed is None or not asked):
        return ("the judge could not be asked; this is the embedded model alone",)
    if signals is None:
        return ("the judge did not say which step it was; the ranking is the embedded model's alone",)
    if failed is None and asked:
        return ("the judge did not say whether the run failed; that is the embedded model's word alone",)
    return ()


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
