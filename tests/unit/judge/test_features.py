from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agentguard.judge.embedded.features.catalogue import (
    COLUMN_BY_NAME,
    FEATURE_NAMES,
    FEATURES,
    GROUPS,
    render_markdown,
    select_columns,
)
from agentguard.judge.embedded.features.lexicon import WORD_CLASSES, classify_word
from agentguard.judge.embedded.features.roles import SpeakerRole, analyze_layout
from agentguard.judge.embedded.features.run_level import RUN_FEATURE_NAMES, RUN_FEATURES, compute_run_features
from agentguard.judge.embedded.features.table import (
    ANSWER_FEATURES,
    build_step_table,
    compute_answer_columns,
)
from agentguard.judge.embedded.features.text_scan import scan_text
from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory
from tests.unit.judge.runs import dialogue, group_chat, steered

RUNS = [group_chat(1).trajectory, steered(2).trajectory, dialogue(3, failed=True).trajectory]


def row(run: Trajectory, step: int) -> dict[str, float]:
    table = build_step_table(run)
    return table.get_features(table.layout.candidate_ordinals[step])


def rows(run: Trajectory) -> list[dict[str, float]]:
    table = build_step_table(run)
    return [table.get_features(row) for row in range(len(table.steps))]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_registry_names_exactly_the_computed_features(run: Trajectory) -> None:
    assert all(set(one) == set(FEATURE_NAMES) for one in rows(run))
    assert set(compute_run_features(build_step_table(run).layout)) == set(RUN_FEATURE_NAMES)


def test_every_feature_has_unique_name_group_and_meaning() -> None:
    every = [*FEATURES, *RUN_FEATURES, *ANSWER_FEATURES]
    assert len({feature.name for feature in every}) == len(every)
    assert all(feature.meaning and feature.name.count(".") == 1 for feature in every)
    assert {feature.group for feature in FEATURES} == set(GROUPS)


def test_column_groups_are_a_partition() -> None:
    columns = [column for group in GROUPS for column in select_columns(group)]
    assert sorted(columns) == list(range(len(FEATURE_NAMES)))
    assert {FEATURES[i].group for i in select_columns("role", "code")} == {"role", "code"}


def test_documentation_contains_the_feature_table() -> None:
    text = Path("docs/embedded-features.md").read_text()
    assert render_markdown() in text
    rows = set(re.findall(r"^\| `([\w.]+)` \|", render_markdown(), re.MULTILINE))
    word_classes = {name.partition(".")[2] for name in rows if name.startswith("wording.")}
    for name in {feature.name for feature in FEATURES} - rows:
        group, _, word_class = name.partition(".")
        assert (group in {"rate", "next", "previous"}, word_class in word_classes) == (True, True), name
    for feature in RUN_FEATURES:
        assert f"`{feature.name}`" in text or feature.name.partition(".")[0] in ("agent", "user")


def test_features_do_not_depend_on_format() -> None:
    source = "".join(file.read_text() for file in Path("agentguard/judge").rglob("*.py")).lower()
    for name in (*formats().names(), "websurfer", "computer_terminal", "captain", "magentic"):
        assert not re.search(rf"\b{name}\b", source), name


def test_labels_do_not_change_features() -> None:
    record = group_chat(1)
    other = replace(record, annotation=replace(record.annotation, failed=False, root_cause=None))
    assert rows(record.trajectory) == rows(other.trajectory)


def test_roles_follow_behaviour() -> None:
    chat, chief = analyze_layout(group_chat(1).trajectory), analyze_layout(steered(2).trajectory)
    assert not chat.has_orchestrator
    assert chat.roles[2] is SpeakerRole.EXECUTOR
    assert chat.task_handoffs == {0}
    assert chief.has_orchestrator
    assert [chief.run.steps[i].agent for i in chief.worker_steps] == ["Browser"] * 3 + ["Reader"]


def test_executors_and_relays_are_not_candidates() -> None:
    run = steered(2).trajectory
    relay = replace(run.steps[2], content="Next: Browser")
    held = analyze_layout(replace(run, steps=(*run.steps[:2], relay, *run.steps[3:])))
    assert 2 not in held.candidates
    assert 0 not in held.candidates
    chat = analyze_layout(group_chat(1).trajectory)
    assert all(chat.roles[i] is not SpeakerRole.EXECUTOR for i in chat.candidates)


def test_ordinals_do_not_depend_on_entries_per_turn() -> None:
    run = steered(2).trajectory
    notes = [replace(step, content="Next: Browser") for step in run.steps if step.agent == "Chief"][:1]
    longer = (*run.steps[:3], *notes, *run.steps[3:])
    held = replace(run, steps=tuple(replace(step, index=i) for i, step in enumerate(longer)))
    assert row(run, 3)["role.turn"] == row(held, 4)["role.turn"] == 0
    assert row(run, 5)["role.turn"] == row(held, 6)["role.turn"] == 1


def test_new_value_that_reaches_the_end_is_detected() -> None:
    said = (
        "Count the boats.",
        "I looked at the northern pier first.",
        "There are 417 boats, says Marlow.",
        "So the answer is 417, as Marlow said. The task is complete and nobody objects to it.",
    )
    steps = tuple(
        Step(index=i, source=Source.USER if i == 0 else Source.AGENT, agent=f"a{i}", content=text)
        for i, text in enumerate(said)
    )
    run = Trajectory(id="x", format="test", task=said[0], steps=steps)
    assert row(run, 2)["flow.numbers_to_end"] > 0
    assert row(run, 2)["claim.final_numbers"] > 0
    assert row(run, 1)["flow.numbers_to_end"] == 0
    assert row(run, 3)["flow.new_numbers"] == 0


def test_value_from_tool_result_has_a_source() -> None:
    steps = (
        Step(index=0, source=Source.USER, agent="user", content="How many?"),
        Step(index=1, source=Source.AGENT, agent="a", tool_calls=(ToolCall(id="1", name="get_count"),),
             observations=(Observation(content="the count is 417 today, all told", call_id="1"),)),
        Step(index=2, source=Source.AGENT, agent="a", content="There are 417."),
        Step(index=3, source=Source.AGENT, agent="a", content="And 992 more."),
    )  # fmt: skip
    run = Trajectory(id="x", format="test", task="How many?", steps=steps)
    assert row(run, 2)["flow.unsourced"] == 0
    assert row(run, 3)["flow.unsourced"] > 0
    assert row(run, 1)["outcome.fine"] == 1


def test_returned_error_is_the_outcome_of_the_previous_step() -> None:
    record = group_chat(1)
    failing = replace(record.trajectory.steps[2], content="exitcode: 1\nTraceback: NameError")
    run = replace(
        record.trajectory, steps=(*record.trajectory.steps[:2], failing, *record.trajectory.steps[3:])
    )
    assert row(run, 1)["outcome.failed"] == 1
    assert row(run, 3)["outcome.after_failed"] == 1
    assert row(record.trajectory, 1)["outcome.failed"] == 0


@pytest.mark.parametrize(
    ("word", "name"),
    [("assuming", "assume"), ("couldn't", "failure"), ("double-check", "verify"), ("instead", "correct")],
)
def test_words_are_classified(word: str, name: str) -> None:
    assert name in {WORD_CLASSES[place][0] for place in classify_word(word)}


def test_scan_detects_flags_code_and_endings() -> None:
    held = scan_text('{"is_progress_being_made": {"reason": "x", "answer": false}, "is_in_loop": true}')
    assert held.flags == {"is_progress_being_made": False, "is_in_loop": True}
    code = scan_text("Run this:\n```python\nimport math\nx = 'example'\nprint(x)\n```\nTERMINATE")
    assert code.has_code
    assert code.is_ending
    assert code.code.imports == 1
    assert code.code.placeholders == 1
    assert scan_text("a plain text").code.length == 0


def test_long_text_is_read_only_at_both_ends() -> None:
    held = scan_text("assume " * 2 + "x" * 50_000 + " therefore")
    assert held.length > 50_000
    assert len(held.lower_text) < 7_000
    assert "therefore" in held.lower_text


def test_known_answer_adds_its_columns() -> None:
    record = group_chat(1)
    table = build_step_table(record.trajectory)
    assert compute_answer_columns(table, None).sum() == 0
    number = next(iter(table.layout.step_scans[table.steps[-1]].numbers))
    assert compute_answer_columns(table, number)[-1, 0] == 1


def test_number_of_calls_grows_linearly_with_the_steps() -> None:
    def count_calls(steps_count: int) -> int:
        calls = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        steps = tuple(
            Step(index=i, source=Source.AGENT, agent=f"a{i % 3}", content=f"I counted {i * 17} boats. " * 8)
            for i in range(steps_count)
        )
        run = Trajectory(id="x", format="test", task="Count the boats.", steps=steps)
        sys.setprofile(count)
        try:
            build_step_table(run)
        finally:
            sys.setprofile(None)
        return calls

    count_calls(10)  # fills the caches of compiled expressions
    assert count_calls(1_000) < 8 * count_calls(250)


texts = st.text(max_size=60)
steps = st.builds(
    Step,
    index=st.just(0),
    source=st.sampled_from(Source),
    agent=st.sampled_from(["a", "b", "", "Shell"]),
    content=texts,
    reasoning=texts,
    tool_calls=st.lists(st.builds(ToolCall, id=texts, name=texts, raw_arguments=texts), max_size=2).map(
        tuple
    ),
    observations=st.lists(
        st.builds(Observation, content=texts, is_error=st.sampled_from([None, True, False])), max_size=2
    ).map(tuple),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=7), texts)
def test_any_run_has_a_finite_table(made: list[Step], task: str) -> None:
    import numpy as np

    run = Trajectory(
        id="x", format="t", task=task, steps=tuple(replace(s, index=i) for i, s in enumerate(made))
    )
    table = build_step_table(run)
    assert len(table.steps) >= 1
    assert table.values.shape == (len(table.steps), len(FEATURE_NAMES))
    assert np.isfinite(table.values).all()
    assert all(map(np.isfinite, compute_run_features(table.layout).values()))
    assert COLUMN_BY_NAME["position.last"] < table.values.shape[1]


def _build_run(*steps: Step, task: str = "") -> Trajectory:
    numbered = tuple(replace(step, index=i) for i, step in enumerate(steps))
    return Trajectory(id="x", format="test", task=task, steps=numbered)


def _say(text: str, agent: str = "a", *calls: ToolCall, result: str | None = None) -> Step:
    seen = () if result is None else (Observation(content=result),)
    return Step(index=0, source=Source.AGENT, agent=agent, content=text, tool_calls=calls, observations=seen)


_BRIEF = (
    "Find the harbour that shipped the most barrels of herring during the winter before the great storm, "
    "compare every ledger of the guild, and report the harbour together with the number of barrels."
)


def test_short_answer_of_a_run_with_tools_is_a_candidate() -> None:
    look = _say("", "a", ToolCall(id="1", name="search_ledgers"), result="Oslo: 40 barrels")
    change = _say("", "a", ToolCall(id="2", name="update_ledger"), result="done")
    assert analyze_layout(_build_run(look, look, _say("Oslo"))).candidates == (0, 1, 2)
    assert analyze_layout(_build_run(look, change, _say("Oslo"))).candidates == (0, 1, 2)
    assert analyze_layout(_build_run(_say("I look it up in a ledger."), _say("Oslo"))).candidates == (0,)


def test_turn_that_repeats_its_prompt_is_not_a_candidate() -> None:
    order = _say(f"Reader, please do this: {_BRIEF}", "chief")
    look = _say("I looked into the ledgers of Bergen and found a note.", "Reader")
    held = analyze_layout(_build_run(_say("Let us begin with the plan now.", "chief"), order, order, look))
    echo = _build_run(
        _say("Let us begin with the plan now.", "chief"), order, replace(order, agent="Reader"), look
    )
    assert 2 in held.candidates
    assert 2 not in analyze_layout(echo).candidates


def test_whole_opening_stretch_of_a_coordinator_is_the_brief() -> None:
    run = _build_run(
        _say(_BRIEF, "chief"),
        _say("Facts to look up: ledgers, barrels, the date of the storm.", "chief"),
        _say("Plan: the reader opens the ledgers first.", "chief"),
        _say("I opened the ledgers of the guild.", "Reader"),
        _say("Continue with the second ledger.", "chief"),
        task=_BRIEF,
    )
    assert analyze_layout(run).task_handoffs == {0, 1, 2}
    alone = replace(run, steps=tuple(replace(step, agent="chief") for step in run.steps))
    assert analyze_layout(alone).task_handoffs == {0}


def test_terminal_action_ends_a_run_and_another_call_breaks_it_off() -> None:
    look = _say("", "a", ToolCall(id="1", name="search_ledgers"), result="Oslo: 40 barrels")
    submit = _say("", "a", ToolCall(id="2", name="submit"))
    ended, cut = analyze_layout(_build_run(look, submit)), analyze_layout(_build_run(look, look))
    assert (ended.has_final_answer, cut.has_final_answer) == (True, False)
    assert compute_run_features(ended)["end.calls"] == 0
    assert compute_run_features(cut)["end.calls"] == 1


@pytest.mark.parametrize(
    ("result", "feature"),
    [
        ("<returncode>1</returncode>", "outcome.failed"),
        ("%PDF-1.7 stream", "outcome.failed"),
        ("[]", "outcome.empty"),
        ("375", "outcome.fine"),
        ("The chapter explains why the error not found page timed out. " * 9, "outcome.fine"),
    ],
)
def test_outcome_features_follow_the_classification_of_results(result: str, feature: str) -> None:
    run = _build_run(_say("", "a", ToolCall(id="1", name="get_x"), result=result), _say("It is there, all."))
    held = row(run, 0)
    assert held[feature] == 1
    assert held["outcome.failed"] == (feature == "outcome.failed")
