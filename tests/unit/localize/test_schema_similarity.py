from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentguard.errors import ConfigError, FormatError, JudgeError
from agentguard.evals.evaluate import evaluate
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.localize.schema_similarity import SchemaLocalizer
from agentguard.schemata.persistence import FileSchemaStore
from agentguard.schemata.signal_trainer import distill_records, select_group
from agentguard.verdict import Verdict
from tests.unit.judge.runs import group_chat
from tests.unit.localize.runs import chat

CHATS = [group_chat(i) for i in range(24)]


@pytest.fixture(scope="module")
def fitted() -> SchemaLocalizer:
    return SchemaLocalizer().fit(CHATS)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schemata") / "s.jsonl"
    FileSchemaStore(path).upsert(distill_records(CHATS)[0])
    return path


def named(diagnosis: Diagnosis) -> list[str]:
    prefix = "matching schemata: "
    notes = [note.removeprefix(prefix) for note in diagnosis.notes if note.startswith(prefix)]
    return notes[0].split(", ") if notes else []


def test_empty_store_makes_the_run_undecided_with_instructions() -> None:
    found = SchemaLocalizer().locate(chat(), ())
    assert found.verdict is Verdict.UNDECIDED
    assert not found.hypotheses
    assert "agentguard schemata distill" in found.notes[0]
    with pytest.raises(JudgeError, match="agentguard schemata distill"):
        SchemaLocalizer().compute_similarity(chat(), ())


def test_unseen_flaws_are_found_and_used_schemata_are_named(fitted: SchemaLocalizer) -> None:
    right, spoke = [], []
    for record in (group_chat(i) for i in range(100, 110)):
        found = fitted.locate(record.trajectory, ())
        cause = record.annotation.root_cause
        assert cause is not None
        right.append(found.hypotheses[0].step == cause.step)
        ids = named(found)
        spoke.append(bool(ids))
        assert all(f"schema {name}" in " ".join(h.reason for h in found.hypotheses) for name in ids)
    assert sum(right) >= 9
    assert all(spoke)


def test_ranker_alone_equals_the_embedded_judge(fitted: SchemaLocalizer) -> None:
    plain = EmbeddedLocalizer.from_model(fitted.model)
    embedded = EmbeddedLocalizer.from_model(EmbeddedLocalizer().model).fit(CHATS)
    for record in CHATS[:4]:
        one, other = (m.locate(record.trajectory, ()) for m in (plain, embedded))
        assert [h.probability for h in one.hypotheses] == [h.probability for h in other.hypotheses]


def test_schemata_of_the_same_question_are_excluded(file: Path) -> None:
    record = CHATS[0]
    own = {one.id for one in distill_records([record])[0]}
    method = SchemaLocalizer(schemata=file, k=50)
    groups = {select_group(other) for other in CHATS if select_group(other) == select_group(record)}
    aside = method.without_group(select_group(record)).compute_similarity(record.trajectory, ())
    seen = [match.schema for row in aside.matches for match in row]
    assert seen
    assert not own & {one.id for one in seen}
    assert not groups & {group for one in seen for group in one.provenance.groups}
    told = SchemaLocalizer(schemata=file, k=50, same_task=True).compute_similarity(record.trajectory, ())
    assert own & {match.schema.id for row in told.matches for match in row}


def test_evaluation_excludes_the_question(file: Path) -> None:
    asked: list[str] = []

    class Watched(SchemaLocalizer):
        def without_group(self, group: str) -> SchemaLocalizer:
            asked.append(group)
            return super().without_group(group)

    evaluate(CHATS[:6], Watched(schemata=file))
    assert len(asked) == 6


def test_shipped_model_is_combined_with_stored_schemata(file: Path) -> None:
    method = SchemaLocalizer(schemata=file)
    run = group_chat(300).trajectory
    found, plain = method.locate(run, ()), EmbeddedLocalizer().locate(run, ())
    assert found.method == "schema"
    assert {h.step for h in found.hypotheses[:3]} & {h.step for h in plain.hypotheses[:3]}
    assert [h.probability for h in found.hypotheses] != [h.probability for h in plain.hypotheses]


def test_correction_is_that_of_the_schema(tmp_path: Path) -> None:
    told = [replace(one, correction="Ask for the data.") for one in distill_records(CHATS)[0]]
    FileSchemaStore(tmp_path / "s.jsonl").upsert(told)
    found = SchemaLocalizer(schemata=tmp_path / "s.jsonl").locate(group_chat(200).trajectory, ())
    corrected = [h for h in found.hypotheses if "it looks like an earlier failure" in h.reason]
    assert corrected
    assert all(h.correction == "Ask for the data." for h in corrected)


def test_guard_accepts_the_method_by_name(file: Path) -> None:
    guard = Guard(localizer="schema", options={"schemata": str(file), "given_failed": True})
    found = guard.diagnose(group_chat(5).trajectory)
    assert found.method == "schema"
    assert found.verdict is Verdict.FAILED


@pytest.mark.parametrize("wrong", [{"k": 0}, {"k": 1.5}, {"k": True}, {"risk": 0}, {"nothing": 1}])
def test_options_are_validated(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SchemaLocalizer(**wrong)  # type: ignore[arg-type]


def test_missing_location_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        SchemaLocalizer(schemata=tmp_path / "none.jsonl")


def test_training_without_failures_keeps_transferable_parts() -> None:
    found = SchemaLocalizer().fit([]).locate(chat(), ())
    assert found.verdict is Verdict.UNDECIDED
