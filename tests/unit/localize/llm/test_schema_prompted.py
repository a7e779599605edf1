"""The judge receives similar earlier failures as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.judge.base import Question
from agentguard.localize.base import get_localizer_registry
from agentguard.localize.llm.schema_prompted import SchemaPromptedLocalizer
from agentguard.localize.schema_similarity import SchemaLocalizer
from agentguard.schemata.persistence import FileSchemaStore
from agentguard.schemata.signal_trainer import distill_records
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.chat_server import serving
from tests.unit.judge.judges import DealingJudge, Said, TableJudge
from tests.unit.judge.runs import group_chat
from tests.unit.test_guard_judge import preferring

CHATS = [group_chat(i) for i in range(12)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schemata") / "s.jsonl"
    FileSchemaStore(path).upsert(distill_records(CHATS)[0])
    return path


def third(run: Trajectory, question: Question) -> Said:
    return "yes" if question.id == "run_failed" else "3"


def test_nearest_failures_are_shown_and_named(file: Path) -> None:
    judge = TableJudge(third)
    told = (
        get_localizer_registry()
        .get("schema")(judge=judge, schemata=file)
        .locate(group_chat(100).trajectory, ())
    )
    (asked,) = [question for _, question in judge.asked if question.id != "run_failed"]
    assert 1 <= len(asked.context) <= 3
    assert all(line.startswith("an earlier failure: ") and len(line) <= 600 for line in asked.context)
    assert "none" in asked.text
    assert told.hypotheses[0].step == 3
    assert told.verdict is Verdict.FAILED
    note = next(one for one in told.notes if one.startswith("schemata in the prompt: "))
    shown = note.removeprefix("schemata in the prompt: ").split(", ")
    assert len(shown) == len(asked.context)
    spoke = [one.schemata[0] for one in told.hypotheses if one.schemata]
    assert spoke
    assert set(spoke) <= set(shown)


def test_empty_schema_store_asks_about_the_run_alone() -> None:
    judge = TableJudge(third)
    told = SchemaPromptedLocalizer(SchemaLocalizer(), judge).locate(group_chat(100).trajectory, ())
    assert told.hypotheses[0].step == 3
    assert all(not question.context for _, question in judge.asked)
    assert "agentguard schemata distill" in told.notes[-1]


def test_method_learns_from_annotated_runs_and_excludes_a_question() -> None:
    fitted = SchemaPromptedLocalizer(SchemaLocalizer(), TableJudge(third)).fit(CHATS)
    assert fitted.finder.schema_count
    run = group_chat(100).trajectory
    whole = set(fitted._find_nearest_schemata(run, ()))
    assert whole
    group = CHATS[1].annotation.group or ""
    assert set(fitted.without_group(group)._find_nearest_schemata(run, ())) <= whole


def test_unavailable_judge_makes_the_run_undecided(file: Path) -> None:
    made = get_localizer_registry().get("schema")(judge=DealingJudge(away=True), schemata=file)
    told = made.locate(group_chat(100).trajectory, ())
    assert told.verdict is Verdict.UNDECIDED
    assert told.failures


def test_missing_judge_keeps_schema_similarity(file: Path) -> None:
    assert isinstance(get_localizer_registry().get("schema")(schemata=file), SchemaLocalizer)


def test_judge_of_policy_is_used(file: Path) -> None:
    with serving(preferring("yes", "3")) as (url, script):
        given = {"judge": {"base_url": url}, "localizer": {"name": "schema", "schemata": str(file)}}
        with Guard.from_policy(Policy.parse(given)) as guard:
            told = guard.diagnose(group_chat(100).trajectory)
        assert told.method == "schema"
        assert told.hypotheses[0].step == 3
        assert any("| an earlier failure: " in prompt for prompt in script.prompts())
