from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

import agentguard
from agentguard.detect.base import Finding
from agentguard.errors import ConfigError, EvaluationError, UnknownPlugin
from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.evaluate import EvaluationPlan, compare, evaluate
from agentguard.evals.methods import BASELINES
from agentguard.evals.result import Setting
from agentguard.localize.base import Diagnosis
from agentguard.trajectory.model import GOLD_ANSWER, Trajectory
from agentguard.verdict import Verdict
from tests.unit.evals.cases import Remembers, Says, record, records

HELD = records(12)


def test_untrained_method_is_scored() -> None:
    result = evaluate(HELD, Says(1, 2))
    where = result.localization
    assert where is not None
    assert (result.n, result.setting, result.repeats) == (12, Setting.UNTRAINED, 1)
    assert where.step.mean == pytest.approx(8 / 12)
    assert where.agent.mean == pytest.approx(8 / 12)
    assert where.top == {"3": 1.0, "5": 1.0}
    assert where.within == {"1": 1.0, "3": 1.0, "5": 1.0}
    assert where.wilson95["step"] == pytest.approx((0.391, 0.862), abs=0.001)
    assert result.outcome is None


def test_package_exports_evaluate() -> None:
    assert agentguard.evaluate is evaluate


def test_cross_validation_separates_questions_and_scores_every_run_per_repeat() -> None:
    method = Remembers()
    result = evaluate(HELD, method, cv="question", folds=3, repeats=2)
    assert result.setting is Setting.CROSS_VALIDATED
    assert len(method.trained) == 6
    assert sorted(method.asked) == sorted([r.trajectory.id for r in HELD] * 2)
    assert len(result.predictions) == 24
    assert result.repeats == 2
    assert result.localization is not None
    assert result.localization.step.mean == pytest.approx(8 / 12)


def test_trainable_method_is_cross_validated_by_default() -> None:
    assert evaluate(HELD, Remembers(), folds=3, repeats=1).setting is Setting.CROSS_VALIDATED


def test_spread_is_over_the_repeats() -> None:
    result = evaluate(HELD, "label_copy", options={"k": 1}, cv="question", folds=3, repeats=4)
    assert result.method == "label_copy(k=1)"
    by_repeat = [
        sum(
            p.steps[:1] == (c.step,)
            for p in result.predictions
            if p.repeat == r
            for c in result.cases
            if c.run == p.run
        )
        / 12
        for r in range(4)
    ]
    middle = sum(by_repeat) / 4
    deviation = math.sqrt(sum((v - middle) ** 2 for v in by_repeat) / 3)
    assert result.localization is not None
    assert result.localization.step.mean == pytest.approx(middle)
    assert result.localization.step.sd == pytest.approx(deviation)


def test_baselines_use_the_same_folds() -> None:
    result = evaluate(HELD, Says(1), cv="question", folds=3, repeats=2)
    assert set(result.baselines) == {spec.label for spec in BASELINES}
    assert result.baselines["constant"].repeats == 2
    assert result.baselines["first_step"].repeats == 1
    again = evaluate(HELD, "constant", cv="question", folds=3, repeats=2)
    assert [p.steps for p in again.predictions] == [p.steps for p in result.baselines["constant"].predictions]


def test_transfer_trains_on_the_other_set_without_shared_questions() -> None:
    other = [
        record("t1", group="QUESTION 1"),
        record("t2", group="new"),
        record("t3", step=2, group="also new"),
    ]
    method = Remembers()
    result = evaluate(HELD, method, train=other)
    assert result.setting is Setting.TRANSFER
    assert [r.trajectory.id for r in method.trained[0]] == ["t2", "t3"]
    with pytest.raises(EvaluationError, match="every training run"):
        evaluate(HELD, method, train=HELD)


def test_shuffled_labels_remove_the_signal() -> None:
    # The label is the middle of the run: easy to learn, and lost if the labels are shuffled.
    held = [record(f"r{i}", step=i % 10 // 2, steps=i % 10 + 1) for i in range(60)]
    honest = evaluate(held, LengthLearner(), cv="question", folds=3, repeats=1)
    dealt = evaluate(held, LengthLearner(), cv="question", folds=3, repeats=1, shuffle_labels=True)
    assert honest.localization is not None
    assert dealt.localization is not None
    assert honest.localization.step.mean == 1.0
    assert dealt.localization.step.mean < 0.5
    assert honest.is_above_baselines()
    assert not dealt.is_above_baselines()


def test_shuffling_trains_even_a_trained_method() -> None:
    method = LengthLearner()
    assert hasattr(method, "locate")
    assert evaluate(HELD, method, folds=3, repeats=1).setting is Setting.AS_SHIPPED
    dealt = evaluate(HELD, method, folds=3, repeats=1, shuffle_labels=True)
    assert dealt.setting is Setting.CROSS_VALIDATED


class LengthLearner:
    """Localizer that learns the root cause by the length of the run."""

    name = "length"

    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def fit(self, records: Sequence[agentguard.Record]) -> LengthLearner:
        fitted = LengthLearner()
        for held in records:
            cause = held.annotation.root_cause
            if cause is not None and cause.step is not None:
                fitted.known[len(held.trajectory.steps)] = cause.step
        return fitted

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        return Says(self.known.get(len(trajectory.steps), 0)).locate(trajectory, findings)


class Raises(Says):
    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        if trajectory.id == "r1":
            raise RuntimeError("no")
        return super().locate(trajectory, findings)


def test_failure_on_a_run_counts_as_wrong() -> None:
    where = evaluate(HELD, Raises(1)).localization
    assert where is not None
    assert (where.errors, where.n) == (1, 12)
    assert where.step.mean == pytest.approx(7 / 12)


@pytest.mark.parametrize("steps", [(99,), (-1,)])
def test_step_outside_the_run_is_an_error(steps: tuple[int, ...]) -> None:
    class Outside(Says):
        def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
            from agentguard.localize.base import Hypothesis

            return Diagnosis(
                trajectory_id="",
                method="outside",
                verdict=Verdict.FAILED,
                probability=1.0,
                hypotheses=(Hypothesis(step=steps[0], agent="x"),),
            )

    where = evaluate(HELD, Outside()).localization
    assert where is not None
    assert where.errors == 12


def test_training_failure_stops_the_evaluation() -> None:
    class Untrainable(Remembers):
        def fit(self, records: object) -> None:  # type: ignore[override]
            raise ZeroDivisionError

    with pytest.raises(EvaluationError, match="remembers could not be trained on 8 runs: ZeroDivisionError"):
        evaluate(HELD, Untrainable(), cv="question", folds=3)


def test_labels_are_hidden_from_methods_except_an_allowed_answer() -> None:
    seen: list[Trajectory] = []

    class Looks(Says):
        def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
            seen.append(trajectory)
            return super().locate(trajectory, findings)

    held = [record("a", answer="42"), record("b")]
    evaluate(held, Looks(1), folds=2)
    assert all(GOLD_ANSWER not in t.extra for t in seen)
    seen.clear()
    evaluate(held, Looks(1), with_answer=True, folds=2)
    assert [t.extra.get(GOLD_ANSWER) for t in seen] == ["42", None]


def test_outcomes_are_scored_if_both_occur() -> None:
    held = [record(f"f{i}", failed=True) for i in range(3)]
    held += [record(f"p{i}", step=None, failed=False, steps=2) for i in range(2)]

    class Guesses(Says):
        def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
            sure = {"f0": 0.9, "f1": 0.8, "f2": 0.3, "p0": 0.4, "p1": 0.1}[trajectory.id]
            says = Says(1) if sure > 0.35 else Says()
            return Says(*says.steps, probability=sure).locate(trajectory, findings)

    result = evaluate(held, Guesses(), folds=2)
    assert result.outcome is not None
    assert (result.n, result.outcome.n, result.outcome.n_failed) == (5, 5, 3)
    assert result.outcome.auroc.mean == pytest.approx(5 / 6)
    assert result.outcome.brier.mean == pytest.approx((0.01 + 0.04 + 0.49 + 0.16 + 0.01) / 5)
    assert result.outcome.named_on_passed == 0.5
    assert result.outcome.undecided == 0.0
    assert result.outcome.verdicts == {
        "failed": {"failed": 2.0, "no_failure_found": 1.0},
        "passed": {"failed": 1.0, "no_failure_found": 1.0},
    }
    assert result.run_size_auroc == 1.0
    assert result.localization is not None
    assert result.localization.n == 3


def test_parts_are_also_scored_separately() -> None:
    data = Dataset(name="two", records=tuple(HELD), parts=("one",) * 6 + ("other",) * 6)
    result = evaluate(data, Says(1), folds=3)
    parts = {name: pair[0] for name, pair in result.subsets.items()}
    assert {name: where.n for name, where in parts.items() if where} == {"one": 6, "other": 6}
    assert {p.run.split("/")[0] for p in result.predictions} == {"one", "other"}


def test_equal_ids_do_not_collide() -> None:
    result = evaluate([record("a"), record("a", step=2), record("b")], Says(1), folds=2)
    assert result.localization is not None
    assert (result.localization.n, len({p.run for p in result.predictions})) == (3, 3)


def test_modules_are_scored_if_annotated() -> None:
    held = [record("a", module="planning"), record("b", module="action"), record("c")]

    class Planner(Says):
        def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
            from dataclasses import replace

            given = super().locate(trajectory, findings)
            return replace(given, hypotheses=(replace(given.hypotheses[0], module="planning"),))

    where = evaluate(held, Planner(1), folds=2).localization
    assert where is not None
    assert where.module == {"n": 2, "module_accuracy": 0.5, "step_and_module": 0.5, "all_correct": 0.0}


def test_unsupported_data_is_rejected_with_reason() -> None:
    with pytest.raises(EvaluationError, match="no run is annotated"):
        evaluate([record("a", step=None, failed=None)], Says(1))
    with pytest.raises(UnknownPlugin):
        evaluate(HELD, "oracle")
    with pytest.raises(ConfigError):
        evaluate(HELD, "label_copy", options={"k": 0})


def test_several_methods_share_the_baselines() -> None:
    first, second = compare(HELD, [Says(1), Says(2, name="other")], plan=EvaluationPlan(folds=3, repeats=1))
    assert first.baselines is second.baselines
    assert [first.method, second.method] == ["says", "other"]


def test_method_may_have_the_name_of_a_baseline() -> None:
    mine, other = compare(
        HELD, [Says(1, name="two_line"), Says(3, name="two_line")], plan=EvaluationPlan(repeats=1)
    )
    assert mine.localization is not None
    assert other.localization is not None
    assert mine.localization.step.mean == pytest.approx(8 / 12)
    assert other.localization.step.mean == 0.0
    assert mine.baselines["two_line"].predictions[0].steps == (0, 1, 2, 3)


def test_json_has_its_documented_fields() -> None:
    given = evaluate(HELD, Says(1), cv="question", folds=3, repeats=1).as_dict()
    needed = {
        "dataset", "method", "n", "agent_accuracy", "step_accuracy", "step_accuracy_published", "within",
        "top", "wilson95", "baselines", "seconds", "auroc", "average_precision", "brier",
    }  # fmt: skip
    assert needed <= set(given)
    assert set(given["within"]) == {"1", "3", "5"}
    assert set(given["top"]) == {"3", "5"}
    assert set(given["wilson95"]) == {"step", "agent"}
    assert given["auroc"] is None
    assert given["baselines"]["two_line"]["step_accuracy"] == pytest.approx(0.0)
    assert given["dataset"] == "test"


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    evaluate(HELD, Says(1), folds=3, repeats=1, progress=lambda *now: told.append(now))
    mine = [now for now in told if now[0] == "says"]
    assert mine[0] == ("says", 1, 12)
    assert mine[-1] == ("says", 12, 12)


def test_interrupted_evaluation_resumes_with_equal_result(tmp_path: Path) -> None:
    whole = evaluate(HELD, Remembers(), cv="question", folds=3, repeats=2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(HELD, Remembers(die_after=13), cv="question", folds=3, repeats=2, checkpoint_dir=tmp_path)
    assert list(tmp_path.iterdir())
    resumed = Remembers()
    again = evaluate(HELD, resumed, cv="question", folds=3, repeats=2, checkpoint_dir=tmp_path)
    assert len(resumed.asked) == 24 - 13
    assert again.localization == whole.localization
    assert [(p.run, p.repeat, p.fold, p.steps) for p in again.predictions] == [
        (p.run, p.repeat, p.fold, p.steps) for p in whole.predictions
    ]
    assert not list(tmp_path.iterdir())


def test_other_options_do_not_use_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate(HELD, Remembers(die_after=5), cv="question", folds=3, repeats=1, checkpoint_dir=tmp_path)
    for changed in ({"seed": 1}, {"folds": 2}):
        method = Remembers()
        evaluate(HELD, method, cv="question", repeats=1, checkpoint_dir=tmp_path, **{"folds": 3, **changed})
        assert len(method.asked) == 12


def test_fresh_discards_the_checkpoint(tmp_path: Path) -> None:
    plan = EvaluationPlan(cv="question", folds=3, repeats=1)
    with pytest.raises(KeyboardInterrupt):
        compare(HELD, [Remembers(die_after=5)], plan=plan, checkpoint_dir=tmp_path)
    method = Remembers()
    compare(HELD, [method], plan=plan, checkpoint_dir=tmp_path, discard_checkpoint=True)
    assert len(method.asked) == 12
