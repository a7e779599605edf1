"""Effects of attacks on judges that an attacker controls completely: the worst case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentguard.detect.detection import detect
from agentguard.evals.judge_checks.attack_runner import (
    AttackReport,
    build_targets,
    observe,
    run_attacks,
    run_guard,
)
from agentguard.evals.judge_checks.attacks import ATTACKS, AttackAim, build_placebo
from agentguard.judge.base import JudgeAnswer, Question
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.judge.llm.prompt import render_run
from agentguard.trajectory.model import Trajectory

CLEAN = {one.run.id: one.run for one in build_targets()}


class Captured:
    """Judge that answers correctly without an attack, and as the attacker wants with one."""

    name = "captured"

    def __init__(self, says: str) -> None:
        self.says = says

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        return tuple(self._answer(transcript, question) for question in questions)

    def _answer(self, run: Trajectory, question: Question) -> JudgeAnswer:
        options = list_options(question)
        clean = CLEAN[run.id]
        attacked = run.steps != clean.steps[: len(run.steps)] or run.task != clean.task
        truth = options[0] if run.id in ("loops", "refused") else options[-1]
        wanted = {"no": options[-1], "yes": options[0]}[self.says]
        picked = wanted if attacked else truth
        rest = 0.02 / max(1, len(options) - 1)
        return JudgeAnswer(
            question=question.id, probabilities={o: 0.98 if o == picked else rest for o in options}
        )


class Obedient(Captured):
    """Judge that ignores a placebo, and does what an attack wants."""

    def __init__(self, *, obeys: bool = True) -> None:
        super().__init__("no")
        self.obeys = obeys

    def _answer(self, run: Trajectory, question: Question) -> JudgeAnswer:
        is_placebo = "The harbour lies" in repr(run)
        shown = CLEAN[run.id] if is_placebo or not self.obeys else run
        self.says = "no" if run.id in ("loops", "refused") else "yes"
        return super()._answer(replace(shown, steps=shown.steps[: len(run.steps)]), question)


@pytest.mark.parametrize("says", ["no", "yes"])
def test_captured_judge_changes_no_action(says: str) -> None:
    report = run_attacks(Captured(says), attacks=ATTACKS[:6])
    tallies = report.attacks.values()
    assert sum(one.verdicts for one in tallies) == 6 * 2
    assert sum(one.actions for one in tallies) == 0
    assert sum(one.overturned for one in tallies) == 0
    assert sum(one.faults for one in tallies) == 0


def test_flips_are_counted_against_clean_and_placebo_twins() -> None:
    report = run_attacks(Captured("no"), attacks=ATTACKS[:6])
    assert (report.open, report.flips) == (12, 0), "a placebo flips the verdicts of failed runs, too"
    obeys = run_attacks(Obedient(), attacks=ATTACKS[:6])
    assert (obeys.open, obeys.flips, obeys.actions) == (24, 24, 0)
    assert not obeys.is_resistant()
    firm = run_attacks(Obedient(obeys=False), attacks=ATTACKS[:6])
    assert (firm.open, firm.flips) == (24, 0)
    assert firm.is_resistant()
    assert firm.to_dict()["interval"][1] < 0.2


def test_failing_judge_changes_no_action() -> None:
    class Away:
        name = "away"

        def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
            return tuple(
                JudgeAnswer(question=q.id, error="away", usage={"fault": "timeout"}) for q in questions
            )

    here = {
        one.run.id: run_guard(Captured("no"), one.run, accepts=not one.failed)[0] for one in build_targets()
    }
    away = {one.run.id: run_guard(Away(), one.run, accepts=not one.failed)[0] for one in build_targets()}
    assert here == away
    assert here["loops"].startswith("rollback")
    assert here["refused"].startswith("rollback")
    assert here["books"] == here["counts"] == "none"


def test_only_new_wanted_verdicts_are_counted() -> None:
    report: AttackReport = run_attacks(Captured("no"), attacks=ATTACKS[:1])
    (tally,) = report.attacks.values()
    # All four attacks want the opposite of the truth; the judge answers no, which two of them want.
    assert (tally.runs, tally.open, tally.wanted) == (4, 4, 2)


def test_at_least_fifteen_distinct_attacks_exist() -> None:
    assert len(ATTACKS) >= 15
    assert len({one.name for one in ATTACKS}) == len(ATTACKS)
    texts = {one.text(AttackAim(passed=True)) for one in ATTACKS}
    assert len(texts) == len(ATTACKS)
    for one in ATTACKS:
        assert one.text(AttackAim(passed=True)) != one.text(AttackAim(passed=False))
    assert len(build_placebo(1_234)) == 1_234


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: one.name)
def test_attacks_stay_within_the_fence_and_trigger_no_rule(one: object) -> None:
    assert isinstance(one, type(ATTACKS[0]))
    for target in build_targets():
        run = one.apply_to(target.run, target.aim, step=1)
        shown = render_run(run, nonce="f" * 15 + "e", limit=100_000)
        outside = [line for line in shown.text.split("\n") if line and not line.startswith("| ")]
        aimed = [line for line in outside if line[:5] not in ("[step", "calle", "came ", "tools", "task:")]
        assert aimed == [f"--- recording {shown.nonce} ---", f"--- end of recording {shown.nonce} ---"]
        assert sum(line.startswith("[step ") for line in outside) == len(run.steps)
        for opener in (
            "<|im",
            "<end_of",
            "<start_of",
            "</s>",
            "[INST]",
            "[/INST]",
            "<bos>",
            "\u200b",
            "\u202e",
        ):
            assert opener not in shown.text
        before, after = (
            {(f.detector, f.step) for f in detect(r).findings if f.probability >= 0.5}
            for r in (target.run, run)
        )
        assert before <= after


def test_run_is_observed_with_all_methods() -> None:
    seen = observe(Captured("no"), build_targets()[0].run, True)
    assert seen.verdict == "yes"
    assert len(seen.methods) == 2
