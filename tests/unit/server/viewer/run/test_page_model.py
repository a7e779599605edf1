"""Page model of a run: lines, head, strip, ledger, spread, branch points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentguard_server.viewer.data.run_data import DAMAGED_ROW_KEY, RunData
from agentguard_server.viewer.run.branches import build_branches
from agentguard_server.viewer.run.effect_ledger import EffectStatus
from agentguard_server.viewer.run.page_model import RunPageModel
from agentguard_server.viewer.run.search import search_run
from agentguard_server.viewer.run.step_kinds import classify_step
from agentguard_server.viewer.run.timeline import MAX_BARS

from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, StepRow
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory
from agentguard.verdict import Verdict
from tests import viewer_runs


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("viewer") / "store.db") as opened:
        viewer_runs.fill(opened, long=())
        yield opened


@pytest.fixture(scope="module")
def recovered(store: Store) -> RunPageModel:
    bundle = RunData.load(store, viewer_runs.RECOVERED)
    assert bundle is not None
    return RunPageModel.from_run_data(bundle)


@pytest.fixture(scope="module")
def lost() -> RunPageModel:
    return RunPageModel.from_run_data(RunData.from_run(*viewer_runs.lost()))


def said(index: int, content: str, source: Source = Source.AGENT) -> Step:
    return Step(index=index, source=source, agent="a", content=content)


def run_of(*steps: Step, branches: tuple[Branch, ...] = ()) -> Trajectory:
    return Trajectory(id="r", format="event_log", task="t", steps=steps, branches=branches)


def verdict(verdict: Verdict, *hypotheses: Hypothesis) -> Diagnosis:
    return Diagnosis(trajectory_id="r", method="m", verdict=verdict, probability=0.5, hypotheses=hypotheses)


# -- branches


def test_nested_branch_is_a_path_from_the_start(recovered: RunPageModel) -> None:
    first, second, third = recovered.branches.abandoned
    assert (second.parent_id, third.parent_id) == (third.id, "")
    assert [len(line.steps) for line in (first, second, third)] == [4, 9, 10]
    assert second.steps[:7] == third.steps[:7]
    assert second.owner_ids[4:7] == (third.id,) * 3
    assert all(step.index == place for place, step in enumerate(second.steps))


def test_branch_lists_branches_that_left_it(recovered: RunPageModel) -> None:
    left = [line.recovery for line in recovered.branches.abandoned]
    assert [(one.strategy, one.tier) for one in left if one] == [
        ("rollback", "reject"), ("rollback", "truncate"), ("compensate", "compensate")
    ]  # fmt: skip


def test_cyclic_branch_parents_terminate() -> None:
    circle = (
        Branch(id="x", fork_step=0, steps=(said(0, "x"),), parent="y"),
        Branch(id="y", fork_step=0, steps=(said(0, "y"),), parent="x"),
        Branch(id="z", fork_step=-4, steps=(), parent="nobody"),
    )
    lines = build_branches(RunData.from_run(run_of(said(0, "live"), branches=circle)))
    assert [line.steps[0].content for line in lines.abandoned[:2]] == ["x", "y"]
    RunPageModel.from_run_data(RunData.from_run(run_of(said(0, "live"), branches=circle)))


# -- header


def test_head_of_recovered_run_names_failure_and_success(
    recovered: RunPageModel,
) -> None:
    head = recovered.header
    assert head.state == "recovered"
    assert head.cause is not None
    assert (head.cause.branch_id, head.cause.step) == (recovered.branches.abandoned[2].id, 4)
    assert "compensated 2 effects" in head.explanation
    assert "Verdict on the final branch: undecided" in head.final_verdict
    assert head.totals.abandoned_steps == 9
    assert head.totals.guard_seconds is not None


def test_head_of_failed_run_names_step_agent_and_correction(lost: RunPageModel) -> None:
    head = lost.header
    assert (head.state, head.title) == ("failed", "Failed")
    assert head.cause is not None
    assert (head.cause.step, head.cause.agent, head.cause.module) == (4, "planner", "memory")
    assert head.cause.codes[0].title == "Invented memory"
    assert head.cause.codes[0].definition
    assert [one.number for one in head.cause.quotes] == [1, 2, 3]


def test_last_step_is_that_of_the_final_run_with_its_error() -> None:
    failed = Step(
        index=1, source=Source.AGENT, agent="b", tool_calls=(ToolCall(id="1", name="pay"),),
        observations=(Observation(content="card refused", call_id="1", is_error=True),),
    )  # fmt: skip
    left = Branch(id="x", fork_step=1, steps=(said(1, "abandoned"), said(2, "abandoned")))
    run = run_of(said(0, "hello"), failed, branches=(left,))
    last = RunPageModel.from_run_data(RunData.from_run(run)).last_step
    assert last is not None
    assert (last.index, last.agent, last.tools, last.summary) == (1, "b", ("pay",), "card refused")
    assert "error" in last.badges


def test_run_without_steps_has_no_last_step() -> None:
    assert RunPageModel.from_run_data(RunData.from_run(run_of())).last_step is None


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (None, "unknown"),
        (verdict(Verdict.NO_FAILURE_FOUND), "fine"),
        (verdict(Verdict.UNDECIDED), "undecided"),
    ],
)
def test_no_failure_undecided_and_undiagnosed_are_separate_states(
    given: Diagnosis | None, state: str
) -> None:
    view = RunPageModel.from_run_data(RunData.from_run(run_of(said(0, "hello")), given))
    assert view.header.state == state
    assert view.header.cause is None


def test_hypothesis_about_missing_step_is_marked() -> None:
    far = Hypothesis(step=99, agent="a", probability=0.9)
    view = RunPageModel.from_run_data(
        RunData.from_run(run_of(said(0, "hello")), verdict(Verdict.FAILED, far))
    )
    assert view.header.cause is not None
    assert not view.header.cause.is_in_run
    assert (view.find_root_step(view.branches.current), view.propagation) == (None, None)


# -- ledger


def test_ledger_distinguishes_effect_states(recovered: RunPageModel) -> None:
    branch = recovered.branches.abandoned
    found = {(one.tool, one.branch_id, one.step): one.status for one in recovered.ledger}
    assert found["send_mail", branch[0].id, 3] is EffectStatus.SKIPPED
    assert found["book_room", branch[2].id, 7] is EffectStatus.UNDONE
    assert found["log_trip", branch[2].id, 5] is EffectStatus.UNKNOWN
    assert found["log_trip", "", 5] is EffectStatus.SKIPPED
    assert found["book_room", "", 6] is EffectStatus.EXECUTED
    assert found["send_mail", branch[2].id, 8] is EffectStatus.EXECUTED
    assert found["send_mail", "", 7] is EffectStatus.REUSED
    assert recovered.ledger[-1].branch_id == ""


def test_effects_are_shown_at_their_calls(recovered: RunPageModel) -> None:
    (turn,) = recovered.build_turns(recovered.branches.current, 7, 8)
    assert turn.calls[0].effect is not None
    assert turn.calls[0].effect.status is EffectStatus.REUSED
    assert turn.calls[0].result is not None


# -- branch diffs


def test_branch_is_compared_with_current_branch(recovered: RunPageModel) -> None:
    parting = recovered.branch_diffs[2]
    assert (parting.branch.number, parting.counterpart.number) == (3, 0)
    first = parting.pairs[0]
    assert first.relation == "changed"
    assert first.left is not None
    assert first.right is not None
    assert [one.differs for one in first.left.calls[0].arguments] == [False, True]
    assert first.right.calls[0].arguments[1].value == "224.8"
    assert [pair.relation for pair in parting.pairs] == [
        "changed",
        "same",
        "left",
        "changed",
        "same",
        "changed",
    ]
    assert parting.guard_messages[0].startswith("[guard]")


def test_inner_branch_is_compared_with_its_parent(recovered: RunPageModel) -> None:
    assert recovered.branch_diffs[1].counterpart.number == 3


def test_rollbacks_are_marked_at_their_steps(recovered: RunPageModel) -> None:
    forks = recovered.group_forks(recovered.branches.current)
    assert {step: [one.number for one in left] for step, left in forks.items()} == {3: [1], 4: [3]}
    inner = recovered.group_forks(recovered.branches.abandoned[2])
    assert {step: [one.number for one in left] for step, left in inner.items()} == {3: [1], 7: [2]}


# -- propagation


def test_root_cause_value_is_traced_along_branch(recovered: RunPageModel) -> None:
    assert recovered.propagation is not None
    (trace,) = recovered.propagation.traces
    assert (trace.value, trace.origin, trace.uses) == ("137.5", 4, [7, 9])
    assert recovered.propagation.reaches_end


def test_derived_value_is_traced() -> None:
    steps = (
        said(0, "Find the total.", Source.USER),
        said(1, "I assume a price of $1,250.50 a night."),
        said(2, "Nothing new here."),
        said(3, "1250.5 times 20 makes 25010."),
        said(4, "The total is 25,010 euros."),
    )
    cause = Hypothesis(step=1, agent="a", probability=0.9)
    found = RunPageModel.from_run_data(
        RunData.from_run(run_of(*steps), verdict(Verdict.FAILED, cause))
    ).propagation
    assert found is not None
    assert [(one.value, one.origin, one.uses, one.source) for one in found.traces] == [
        ("$1,250.50", 1, [3], ""), ("25010", 3, [4], "$1,250.50")
    ]  # fmt: skip
    assert {step for trace in found.traces for step in trace.uses} == {3, 4}


def test_previously_known_value_is_not_traced() -> None:
    steps = (said(0, "Pay 99.5 euros.", Source.USER), said(1, "I pay 99.5."), said(2, "Paid 99.5."))
    found = RunPageModel.from_run_data(
        RunData.from_run(
            run_of(*steps), verdict(Verdict.FAILED, Hypothesis(step=1, agent="a", probability=1.0))
        )
    ).propagation
    assert found is not None
    assert (found.traces, found.value_count) == ((), 0)


def test_unused_value_has_no_propagation() -> None:
    steps = (said(0, "Go.", Source.USER), said(1, "I take AB-1234."), said(2, "Done."))
    found = RunPageModel.from_run_data(
        RunData.from_run(
            run_of(*steps), verdict(Verdict.FAILED, Hypothesis(step=1, agent="a", probability=1.0))
        )
    ).propagation
    assert found is not None
    assert (found.traces, found.value_count, found.reaches_end) == ((), 1, False)


def trace_values(*contents: str) -> list[str]:
    """Return the traced values of a run whose step 1 is the root cause."""
    steps = [said(0, "Go.", Source.USER), *(said(i, content) for i, content in enumerate(contents, 1))]
    cause = Hypothesis(step=1, agent="a", probability=1.0)
    found = RunPageModel.from_run_data(RunData.from_run(run_of(*steps), verdict(Verdict.FAILED, cause)))
    assert found.propagation is not None
    return [trace.value for trace in found.propagation.traces]


@pytest.mark.parametrize(
    "value",
    [
        *("30", "600", "2024", "2000", "0-0", r"They\u2019re"),
        "https://example.org/search?q=%2C+PA+19147&cvid=F4D2C4EF33D5",
        '"fb:app_id": "3732605936979161"',
    ],
)
def test_propagation_of_indistinct_value_is_not_traced(value: str) -> None:
    assert trace_values(f"I see {value} here.", f"Again {value}.") == []


@pytest.mark.parametrize("value", ["AB-1234", "25010", "72.00", "ann@example.org"])
def test_propagation_of_distinctive_value_is_traced(value: str) -> None:
    assert trace_values(f"I see {value} here.", f"Again {value}.") == [value]


def test_propagation_of_value_in_most_steps_is_not_traced() -> None:
    assert trace_values("I open report2024.", *["Still report2024."] * 10) == []


# -- strip


def test_time_strip_shows_branches_below(recovered: RunPageModel) -> None:
    strip = recovered.build_timeline(recovered.branches.current, None)
    assert strip.axis == "time"
    assert [lane.number for lane in strip.lanes] == [1, 2, 3]
    assert strip.lanes[2].root is not None
    assert strip.root is None
    assert all(0 <= bar.x <= bar.x + bar.width <= 100.2 for bar in strip.bars)
    assert strip.bars[4].badges >= {"rollback", "effect"}


def test_index_strip_gives_each_step_equal_width(lost: RunPageModel) -> None:
    strip = lost.build_timeline(lost.branches.current, "steps")
    assert (strip.axis, len(strip.bars)) == ("steps", 18)
    assert {round(bar.width, 1) for bar in strip.bars} == {5.6}
    assert strip.bars[4].root
    assert strip.propagation_end is not None


def test_long_strip_is_binned_and_keeps_errors() -> None:
    error = Observation(content="no", is_error=True)
    call = ToolCall(id="c", name="t", arguments={})
    steps = tuple(
        replace(said(i, "s"), tool_calls=(call,), observations=(error,)) if i == 7_777 else said(i, "s")
        for i in range(10_000)
    )
    strip = RunPageModel.from_run_data(RunData.from_run(run_of(*steps))).build_timeline(
        build_branches(RunData.from_run(run_of(*steps))).current, None
    )
    assert len(strip.bars) <= MAX_BARS
    (bar,) = [bar for bar in strip.bars if bar.badges]
    assert (bar.step, bar.badges) == (7_777, {"error"})
    assert not strip.timed


def test_empty_run_has_empty_strip() -> None:
    view = RunPageModel.from_run_data(RunData.from_run(run_of()))
    assert view.build_timeline(view.branches.current, None).bars == ()


# -- turns and search


def test_repairs_and_elections_are_shown_with_their_turn() -> None:
    marks = {
        "repaired": [{"field": "tool_calls[0]", "original": "{", "repaired": "{}"}],
        "elected": {"candidates": 3, "votes": 2, "taken": 1, "reason": "two are the same"},
    }
    view = RunPageModel.from_run_data(
        RunData.from_run(run_of(replace(said(0, "x"), extra={"agentguard": marks})))
    )
    (turn,) = view.build_turns(view.branches.current, 0, 1)
    assert [(one.field, one.original, one.repaired) for one in turn.repairs] == [("call 1", "{", "{}")]
    assert turn.election == "Chosen among 3 candidates: 2 agreed (two are the same)"


@pytest.mark.parametrize("odd", [None, 7, [], {"told": 3, "repaired": {}, "elected": []}])
def test_foreign_extra_data_is_ignored(odd: object) -> None:
    view = RunPageModel.from_run_data(
        RunData.from_run(run_of(replace(said(0, "x"), extra={"agentguard": odd})))
    )
    (turn,) = view.build_turns(view.branches.current, 0, 1)
    assert (turn.guard_messages, turn.repairs, turn.election) == ((), (), "")


def test_recovery_actions_are_described_in_words(recovered: RunPageModel) -> None:
    assert [one.action_descriptions for one in recovered.data.recoveries][2] == (
        "compensated book_room, hold_money",
        "rolled back to step 4 (truncate)",
        "sent a correction to the agent",
    )


def test_guard_message_precedes_its_turn(recovered: RunPageModel) -> None:
    (turn,) = recovered.build_turns(recovered.branches.current, 4, 5)
    assert turn.guard_messages[0].startswith("[guard] Your run was rolled back")
    assert turn.kind == classify_step(recovered.branches.current.steps[4])


def test_error_is_recognised_by_flag_or_text() -> None:
    looks = Observation(content="Error: the door is locked")
    told = Observation(content="Error is the title of this song", is_error=False)
    view = RunPageModel.from_run_data(
        RunData.from_run(
            run_of(replace(said(0, "x"), observations=(looks,)), replace(said(1, "x"), observations=(told,)))
        )
    )
    first, second = view.build_turns(view.branches.current, 0, 2)
    assert first.results[0].error == "looks like an error"
    assert not second.error


def test_search_covers_every_field_of_every_branch(recovered: RunPageModel) -> None:
    found = search_run(recovered.branches, "137.5")
    assert {hit.branch.number for hit in found.hits} == {3}
    assert {(hit.step, hit.field) for hit in found.hits} >= {
        (4, "content"),
        (4, "tool_calls[0]"),
        (9, "content"),
    }
    assert search_run(recovered.branches, "  ").hits == ()
    assert search_run(recovered.branches, "SEND_MAIL").hits[0].match == "send_mail"


# -- run data


def test_missing_run_is_none(store: Store) -> None:
    assert RunData.load(store, "nobody") is None


def test_unreadable_rows_are_shown_and_named(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.write_run(run_of(said(0, "fine"), said(1, "fine, too")))
        store.write(StepRow(run_id="r", index=2, source="agent", agent="a", data={"index": "x", "odd": 1}))
        store.write(DiagnosisRow(run_id="r", method="m", verdict="failed", data={"verdict": 7}))
        store.flush(10)
        bundle = RunData.load(store, "r")
    assert bundle is not None
    assert [step.content for step in bundle.run.steps[:2]] == ["fine", "fine, too"]
    assert '"odd": 1' in bundle.run.steps[2].content
    assert DAMAGED_ROW_KEY in bundle.run.steps[2].extra
    assert bundle.diagnosis is None
    assert any("step 2 cannot be read" in one for one in bundle.problems)
    assert any("diagnosis" in one for one in bundle.problems)
    assert RunPageModel.from_run_data(bundle).build_turns(build_branches(bundle).current, 2, 3)[0].read_error


@pytest.mark.parametrize(("is_repeated", "title"), [(True, "Undecided"), (False, "Failed and recovered")])
def test_call_that_the_guard_held_and_the_agent_made_again_is_no_failure(
    tmp_path: Path, is_repeated: bool, title: str
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "charge", "arguments": '{"amount": 20}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    answers = [turn, turn, *([turn] if is_repeated else []), "I charged 20."]
    with Store.open(tmp_path / "store.db") as store:
        guard = Guard(store=store)

        @guard.tool(effect="destructive")
        def charge(amount: int) -> str:
            return f"charged {amount}, receipt 7"

        with guard.run("Charge 20.", tools=[charge], id="trip") as run:
            while not run.done:
                run.tools(run.model(lambda messages: answers.pop(0)))
        assert guard.flush()
        store.flush()
        data = RunData.load(store, "trip")
    assert data is not None
    assert RunPageModel.from_run_data(data).header.title == title
