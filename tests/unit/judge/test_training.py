from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from agentguard.errors import JudgeError, ModelFileError
from agentguard.evals.splits import shuffle_record_labels
from agentguard.judge.base import RUN_FAILED, Predicate, build_root_cause_question
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.judge.embedded.judge import EmbeddedJudge, verify_model
from agentguard.judge.embedded.log_kind import build_log_kind
from agentguard.judge.embedded.model import EmbeddedModel
from agentguard.judge.embedded.model_card import CARD_FILE, MODEL_FILE, get_default_folder
from agentguard.judge.embedded.model_io import (
    decode_model,
    dump_model,
    encode_model,
    load_model,
    parse_model,
    save_model,
)
from agentguard.judge.embedded.training import assign_folds, build_untrained_model, train_model
from agentguard.trajectory.model import Record, ToolCall, Trajectory
from tests.unit.judge.runs import dialogue, group_chat, steered

CHATS = [group_chat(i) for i in range(30)]
TALKS = [dialogue(i, failed=i % 2 == 0) for i in range(40)]


@pytest.fixture(scope="module")
def model() -> EmbeddedModel:
    return train_model([*CHATS, *TALKS, *(steered(i) for i in range(5))])


@pytest.fixture
def folder(model: EmbeddedModel, tmp_path: Path) -> Path:
    save_model(model, tmp_path, {"data": [], "scores": [], "limits": []})
    return tmp_path


def top(model: EmbeddedModel, record: Record) -> int:
    judged = model.judge(record.trajectory, risk=0.1)
    return judged.table.steps[int(judged.step_probabilities.argmax())]


def test_run_kind_is_trained_from_its_annotations(model: EmbeddedModel) -> None:
    held = {one.kind.key: (one.ranker is not None, one.outcome is not None) for one in model.specialists}
    assert held == {"agent-messages": (True, False), "user-calls": (False, True)}


def test_unseen_flaws_and_outcomes_are_found(model: EmbeddedModel) -> None:
    unseen = [group_chat(i) for i in range(100, 130)]
    assert np.mean([top(model, r) == r.annotation.root_cause.step for r in unseen]) > 0.9  # type: ignore[union-attr]
    failed = [
        model.judge(dialogue(i, failed=True).trajectory, risk=0.1).failure_probability
        for i in range(100, 110)
    ]
    passed = [
        model.judge(dialogue(i, failed=False).trajectory, risk=0.1).failure_probability
        for i in range(100, 110)
    ]
    assert min(failed) > max(passed)


def test_shuffled_labels_give_no_accuracy() -> None:
    unseen = [group_chat(i) for i in range(100, 130)]
    right = []
    for seed in range(4):
        made = train_model(shuffle_record_labels(CHATS, seed=seed))
        right += [top(made, r) == r.annotation.root_cause.step for r in unseen]  # type: ignore[union-attr]
    # Flawed steps differ from the others in many features: one shuffle may affect all of them or none.
    assert np.mean(right) < 0.75


def test_training_is_deterministic_to_the_byte(model: EmbeddedModel) -> None:
    again = train_model([*CHATS, *TALKS, *(steered(i) for i in range(5))])
    assert dump_model(again) == dump_model(model)


def test_missing_annotations_are_an_error() -> None:
    blank = [replace(r, annotation=replace(r.annotation, failed=None, root_cause=None)) for r in CHATS]
    with pytest.raises(JudgeError):
        train_model(blank)
    assert top(build_untrained_model(), CHATS[0]) == 1


def test_known_answer_adds_three_columns() -> None:
    made = train_model(CHATS, with_answer=True)
    judged = made.judge(CHATS[0].trajectory, risk=0.1, answer="41")
    assert judged.step_probabilities.sum() == pytest.approx(1)


def test_folds_keep_groups_together() -> None:
    groups = [str(i // 3) for i in range(30)]
    folds = assign_folds(groups, 4, 0)
    assert all(len({folds[i] for i in range(30) if groups[i] == g}) == 1 for g in groups)
    assert set(folds) == {0, 1, 2, 3}


def test_run_of_unknown_kind_uses_transferable_parts(model: EmbeddedModel) -> None:
    judged = model.judge(steered(50).trajectory, risk=0.1)
    assert not judged.is_known_ranking
    assert not judged.is_known_outcome
    assert judged.failure_probability == pytest.approx(0.5)


def test_stored_model_equals_trained_model(model: EmbeddedModel, folder: Path) -> None:
    held = load_model(folder)
    assert dump_model(held) == dump_model(model)
    for record in (CHATS[0], TALKS[0], steered(9)):
        one, other = (m.judge(record.trajectory, risk=0.1) for m in (model, held))
        assert one.step_probabilities.tolist() == other.step_probabilities.tolist()
        assert one.failure_probability == other.failure_probability


def test_skops_reads_the_file_without_untrusted_types(folder: Path) -> None:
    found = verify_model(folder)
    assert found["untrusted_types"] == 0
    assert found["answers"] is True


def test_changed_file_is_rejected(folder: Path) -> None:
    file = folder / MODEL_FILE
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match="does not match its card"):
        load_model(folder)


def test_missing_file_error_explains_training(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="agentguard judge train"):
        load_model(tmp_path)


def test_other_features_are_rejected(folder: Path) -> None:
    card = orjson.loads((folder / CARD_FILE).read_bytes())
    card["features"]["steps"].pop()
    (folder / CARD_FILE).write_bytes(orjson.dumps(card))
    with pytest.raises(ModelFileError, match="other features"):
        load_model(folder)


@pytest.mark.parametrize("card", [b"[]", b"{", b""])
def test_invalid_card_is_rejected(folder: Path, card: bytes) -> None:
    (folder / CARD_FILE).write_bytes(card)
    with pytest.raises(ModelFileError):
        load_model(folder)


def forged(folder: Path, data: bytes) -> None:
    card = orjson.loads((folder / CARD_FILE).read_bytes())
    card["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / CARD_FILE).write_bytes(orjson.dumps(card))
    (folder / MODEL_FILE).write_bytes(data)


def test_file_with_non_array_members_is_rejected(folder: Path) -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression

    forged(folder, skops.io.dumps({"a": LogisticRegression()}))
    with pytest.raises(ModelFileError):
        load_model(folder)
    forged(folder, b"not a zip")
    with pytest.raises(ModelFileError):
        load_model(folder)


def test_pickle_inside_an_array_is_not_opened(folder: Path) -> None:
    held = io.BytesIO()
    np.lib.format.write_array(held, np.array([{"x": 1}], dtype=object), allow_pickle=True)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("0.npy", held.getvalue())
        node = {"__loader__": "NdArrayNode", "type": "numpy", "file": "0.npy"}
        made.writestr("schema.json", orjson.dumps({"content": {"structure": node}}))
    with pytest.raises(ModelFileError):
        parse_model(out.getvalue())


@pytest.mark.parametrize(
    "structure",
    [
        {"class": "Popen", "fields": {}},
        {"class": "Ranker", "fields": {"members": None, "no_such_field": 1}},
        {"array": "absent", "dtype": "float64"},
        {"array": "a", "dtype": "object"},
        {"tuple": []},
        {},
    ],
)
def test_unknown_structure_is_rejected(structure: object) -> None:
    with pytest.raises(ModelFileError):
        decode_model(structure, {"a": np.zeros(2)})


def test_only_model_parts_are_encoded() -> None:
    with pytest.raises(TypeError):
        encode_model(object())


def test_judge_answers_only_its_two_questions(model: EmbeddedModel) -> None:
    run = CHATS[0].trajectory
    asked = [RUN_FAILED, build_root_cause_question(run), Predicate(id="polite", text="Was it polite?")]
    failed, cause, other = EmbeddedJudge(model).decide(run, asked)
    assert failed.probabilities["yes"] + failed.probabilities["no"] == pytest.approx(1)
    assert set(cause.probabilities) == {str(i) for i in range(len(run.steps))}
    assert sum(cause.probabilities.values()) == pytest.approx(1)
    assert other.error
    assert not other.probabilities


def test_empty_run_is_an_error_of_the_judge(model: EmbeddedModel) -> None:
    run = Trajectory(id="e", format="t", task="", steps=())
    assert all(
        a.error for a in EmbeddedJudge(model).decide(run, [RUN_FAILED, build_root_cause_question(run)])
    )


def test_shipped_model_is_valid_and_small() -> None:
    found = verify_model()
    assert found["bytes"] < 5_000_000
    card = orjson.loads((get_default_folder() / CARD_FILE).read_bytes())
    assert {"data", "scores", "limits", "features", "sha256", "agentguard"} <= set(card)
    assert all(one["sha256"] and one["licence"] for one in card["data"])
    assert "/" not in "".join(one["sha256"] for one in card["data"])


def test_specialist_of_an_agent_does_not_judge_an_agent_with_other_tools() -> None:
    run = steered(50).trajectory
    steps = tuple(
        replace(step, tool_calls=(ToolCall(id="1", name="query", arguments={}),)) for step in run.steps
    )
    layout = build_step_table(replace(run, steps=steps)).layout
    kind = build_log_kind([layout])
    renamed = tuple(
        replace(step, tool_calls=(ToolCall(id="1", name="search", arguments={}),)) for step in run.steps
    )
    assert kind.matches(layout)
    assert not kind.matches(build_step_table(replace(run, steps=renamed)).layout)


def test_base_model_keeps_its_transferable_part(model: EmbeddedModel) -> None:
    extended = train_model([steered(number) for number in range(30)], base=model)
    assert extended.portable is model.portable
    assert extended.specialists[-len(model.specialists) :] == model.specialists
    assert len(extended.specialists) > len(model.specialists)
