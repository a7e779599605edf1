from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import orjson
import pytest

from agentguard.detect.base import Evidence, Finding
from agentguard.errors import ConfigError, ModelFileError
from agentguard.guard import Guard
from agentguard.judge.embedded.model_card import CARD_FILE, get_default_folder
from agentguard.judge.embedded.run_digests import encode_digests
from agentguard.judge.embedded.training import build_untrained_model, train_model
from agentguard.localize.embedded import TRAINING_NOTE, EmbeddedLocalizer
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.runs import dialogue, group_chat, steered


@pytest.fixture(scope="module")
def fitted() -> EmbeddedLocalizer:
    records = [group_chat(i) for i in range(30)] + [dialogue(i, failed=i % 2 == 0) for i in range(40)]
    return EmbeddedLocalizer.from_model(train_model(records))


def test_root_cause_has_everything_a_recovery_needs(fitted: EmbeddedLocalizer) -> None:
    record = group_chat(77, flaw=3)
    first = fitted.locate(record.trajectory, ()).hypotheses[0]
    assert first.step == 3
    assert first.agent == "Count_Expert"
    assert first.module == "memory"
    assert "agent_error:memory.hallucination" in first.codes
    assert "assume" in first.evidence[0].quote
    assert "step 3" in first.correction
    assert first.reason


def test_quotes_are_at_their_offsets(fitted: EmbeddedLocalizer) -> None:
    for run in (group_chat(1).trajectory, steered(2).trajectory, dialogue(3, failed=True).trajectory):
        for hypothesis in fitted.locate(run, ()).hypotheses:
            assert bool(hypothesis.evidence) == bool(hypothesis.codes) == bool(hypothesis.correction)
            for quote in hypothesis.evidence:
                assert run.steps[quote.step].text(quote.field)[quote.start : quote.end] == quote.quote


def test_probabilities_are_ranked_and_at_most_one(fitted: EmbeddedLocalizer) -> None:
    held = [h.probability for h in fitted.locate(group_chat(5).trajectory, ()).hypotheses]
    assert held == sorted(held, reverse=True)
    assert sum(held) <= 1 + 1e-9


def test_known_kind_gets_a_verdict(fitted: EmbeddedLocalizer) -> None:
    passed = [fitted.locate(dialogue(i, failed=False).trajectory, ()) for i in range(100, 110)]
    failed = [fitted.locate(dialogue(i, failed=True).trajectory, ()) for i in range(100, 110)]
    assert not any(d.verdict is Verdict.FAILED for d in passed)
    assert all(not d.hypotheses for d in passed if d.verdict is Verdict.NO_FAILURE_FOUND)
    assert all(p.probability < f.probability for p, f in zip(passed, failed, strict=True))


def test_unknown_kind_is_undecided_with_ranked_steps(
    fitted: EmbeddedLocalizer,
) -> None:
    given = fitted.locate(steered(3).trajectory, ())
    assert given.verdict is Verdict.UNDECIDED
    assert given.hypotheses[0].step == 3
    assert any("has no labelled runs of this agent" in note for note in given.notes)


def loop(step: int, probability: float = 0.7) -> Finding:
    run = steered(3).trajectory
    quote = run.steps[step].content[:5]
    return Finding(
        detector="loop",
        step=step,
        codes=("mast:step_repetition", "agent_error:planning.inefficient_plan"),
        probability=probability,
        message="the same page again",
        evidence=(Evidence(step=step, field="content", quote=quote, start=0, end=5),),
        correction="Open another page.",
    )


def test_findings_take_priority_on_an_unknown_kind() -> None:
    run = steered(3).trajectory
    given = EmbeddedLocalizer.from_model(build_untrained_model()).locate(
        run, [loop(5, 0.9), replace(loop(5), detector="stall")]
    )
    assert given.verdict is Verdict.FAILED
    first = given.hypotheses[0]
    assert first.step == 5
    assert first.codes[0] == "mast:step_repetition"
    assert first.module == "planning"
    assert first.correction == "Open another page."
    assert first.evidence[0].quote == run.steps[5].content[:5]
    assert "the same page again" in first.reason


def test_earlier_of_two_findings_weighs_more() -> None:
    run = steered(3).trajectory
    given = (
        EmbeddedLocalizer.from_model(build_untrained_model())
        .locate(run, [loop(7, 0.9), loop(5, 0.9)])
        .hypotheses
    )
    weight = {hypothesis.step: hypothesis.probability for hypothesis in given}
    assert weight[5] > weight[7]


def test_run_without_steps_is_undecided(fitted: EmbeddedLocalizer) -> None:
    given = fitted.locate(Trajectory(id="e", format="t", task="", steps=()), ())
    assert given.verdict is Verdict.UNDECIDED
    assert not given.hypotheses


@pytest.mark.parametrize("risk", [0, -1, 0.6, "low", True])
def test_risk_out_of_range_is_rejected(risk: object) -> None:
    with pytest.raises(ConfigError, match="risk"):
        EmbeddedLocalizer(risk=risk)  # type: ignore[arg-type]


def test_missing_model_error_explains_training(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="agentguard judge train"):
        EmbeddedLocalizer(model=tmp_path)


def test_training_keeps_the_untrained_localizer() -> None:
    blank = EmbeddedLocalizer.from_model(build_untrained_model(), risk=0.2)
    before = blank.locate(group_chat(1).trajectory, ())
    made = blank.fit([group_chat(i) for i in range(30)])
    assert blank.locate(group_chat(1).trajectory, ()) == before
    assert made.risk == 0.2
    assert made.locate(group_chat(1).trajectory, ()) != before


def test_unlabelled_runs_leave_the_prior() -> None:
    bare = [
        replace(r, annotation=replace(r.annotation, failed=None, root_cause=None)) for r in [group_chat(1)]
    ]
    assert (
        EmbeddedLocalizer.from_model(build_untrained_model())
        .fit(bare)
        .locate(steered(1).trajectory, ())
        .hypotheses[0]
        .step
        == 3
    )


def test_answer_is_used_only_on_request() -> None:
    records = [group_chat(i) for i in range(30)]
    run = records[0].trajectory
    told = replace(run, extra={"gold_answer": "TERMINATE"})
    plain = EmbeddedLocalizer.from_model(build_untrained_model()).fit(records)
    assert plain.locate(told, ()) == plain.locate(run, ())
    reads = EmbeddedLocalizer.from_model(build_untrained_model(), with_answer=True).fit(records)
    assert reads.locate(told, ()) == reads.locate_with_answer(run, (), "TERMINATE")
    assert reads.locate(told, ()) != reads.locate(run, ())


def test_shipped_model_loads_once_and_answers() -> None:
    given = EmbeddedLocalizer().locate(group_chat(1).trajectory, ())
    assert given.method == "embedded"
    assert given.hypotheses


def test_run_of_the_training_data_is_noted(tmp_path: Path) -> None:
    copytree(get_default_folder(), tmp_path / "model")
    run = group_chat(1).trajectory
    card = orjson.loads((tmp_path / "model" / CARD_FILE).read_bytes())
    card["data"].append({"name": "mine", "run_digests": encode_digests([run])})
    (tmp_path / "model" / CARD_FILE).write_bytes(orjson.dumps(card))
    trained = EmbeddedLocalizer(model=tmp_path / "model")
    assert TRAINING_NOTE in trained.locate(run, ()).notes
    assert TRAINING_NOTE not in trained.locate(group_chat(2).trajectory, ()).notes


def test_run_without_a_step_of_an_agent_has_no_hypothesis() -> None:
    steps = (Step(index=0, source=Source.USER, agent="user", content="Hello, is anybody there?"),)
    diagnosis = Guard().diagnose(Trajectory(id="r", format="test", task="", steps=steps))
    assert (diagnosis.verdict, diagnosis.hypotheses) == (Verdict.UNDECIDED, ())
    assert "no step of an agent" in diagnosis.notes[0]
