"""What the page of a run shows, as values: lines, head, strip, ledger, spread, partings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentguard_server.viewer.bundle import DAMAGED_STEP, Bundle
from agentguard_server.viewer.run.kinds import look_of
from agentguard_server.viewer.run.ledger import Fate
from agentguard_server.viewer.run.lines import lines_of
from agentguard_server.viewer.run.search import search
from agentguard_server.viewer.run.strip import MOST
from agentguard_server.viewer.run.view import View

from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.store import Store
from agentguard.store.rows import DiagnosisRow, StepRow
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory
from tests import viewer_runs


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("viewer") / "store.db") as opened:
        viewer_runs.fill(opened, long=())
        yield opened


@pytest.fixture(scope="module")
def recovered(store: Store) -> View:
    bundle = Bundle.load(store, viewer_runs.RECOVERED)
    assert bundle is not None
    return View.of(bundle)


@pytest.fixture(scope="module")
def lost() -> View:
    return View.of(Bundle.of(*viewer_runs.lost()))


def said(index: int, content: str, source: Source = Source.AGENT) -> Step:
    return Step(index=index, source=source, agent="a", content=content)


def run_of(*steps: Step, branches: tuple[Branch, ...] = ()) -> Trajectory:
    return Trajectory(id="r", format="event_log", task="t", steps=steps, branches=branches)


def verdict(verdict: Verdict, *hypotheses: Hypothesis) -> Diagnosis:
    return Diagnosis(trajectory_id="r", method="m", verdict=verdict, probability=0.5, hypotheses=hypotheses)


# -- lines


def test_a_branch_of_a_branch_is_a_path_from_the_beginning(recovered: View) -> None:
    first, second, third = recovered.lines.branches
    assert (second.parent, third.parent) == (third.id, "")
    assert [len(line.steps) for line in (first, second, third)] == [4, 9, 10]
    assert second.steps[:7] == third.steps[:7]
    assert second.owners[4:7] == (third.id,) * 3
    assert all(step.index == place for place, step in enumerate(second.steps))


def test_each_branch_knows_what_left_it(recovered: View) -> None:
    left = [line.recovery for line in recovered.lines.branches]
    assert [(one.strategy, one.tier) for one in left if one] == [
        ("rollback", "reject"), ("rollback", "truncate"), ("compensate", "compensate")
    ]  # fmt: skip


def test_branches_that_name_each_other_as_parents_end() -> None:
    circle = (
        Branch(id="x", fork_step=0, steps=(said(0, "x"),), parent="y"),
        Branch(id="y", fork_step=0, steps=(said(0, "y"),), parent="x"),
        Branch(id="z", fork_step=-4, steps=(), parent="nobody"),
    )
    lines = lines_of(Bundle.of(run_of(said(0, "live"), branches=circle)))
    assert [line.steps[0].content for line in lines.branches[:2]] == ["x", "y"]
    View.of(Bundle.of(run_of(said(0, "live"), branches=circle)))


# -- head


def test_the_head_of_a_recovered_run_says_what_went_wrong_and_that_it_is_well(recovered: View) -> None:
    head = recovered.head
    assert head.state == "recovered"
    assert head.cause is not None
    assert (head.cause.line, head.cause.step) == (recovered.lines.branches[2].id, 4)
    assert "undid 2 effects" in head.says
    assert "cannot be judged" in head.after
    assert head.totals.left == 9
    assert head.totals.guard is not None


def test_the_head_of_a_failed_run_names_step_agent_and_correction(lost: View) -> None:
    head = lost.head
    assert (head.state, head.title) == ("failed", "Failed")
    assert head.cause is not None
    assert (head.cause.step, head.cause.agent, head.cause.module) == (4, "planner", "memory")
    assert head.cause.codes[0].title == "Invented memory"
    assert head.cause.codes[0].definition
    assert [one.number for one in head.cause.quotes] == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "state"),
    [(None, "unknown"), (verdict(Verdict.NO_FAILURE), "fine"), (verdict(Verdict.ABSTAINED), "unsure")],
)
def test_no_failure_abstained_and_not_diagnosed_are_states_of_their_own(
    given: Diagnosis | None, state: str
) -> None:
    view = View.of(Bundle.of(run_of(said(0, "hello")), given))
    assert view.head.state == state
    assert view.head.cause is None


def test_a_hypothesis_about_a_step_that_is_not_there_is_shown_as_such() -> None:
    far = Hypothesis(step=99, agent="a", probability=0.9)
    view = View.of(Bundle.of(run_of(said(0, "hello")), verdict(Verdict.FAILURE, far)))
    assert view.head.cause is not None
    assert not view.head.cause.there
    assert (view.root(view.lines.live), view.spread) == (None, None)


# -- ledger


def test_the_ledger_tells_executed_undone_reused_skipped_and_in_doubt(recovered: View) -> None:
    branch = recovered.lines.branches
    found = {(one.tool, one.line, one.step): one.fate for one in recovered.ledger}
    assert found["send_mail", branch[0].id, 3] is Fate.SKIPPED
    assert found["book_room", branch[2].id, 7] is Fate.UNDONE
    assert found["log_trip", branch[2].id, 5] is Fate.DOUBT
    assert found["log_trip", "", 5] is Fate.SKIPPED
    assert found["book_room", "", 6] is Fate.EXECUTED
    assert found["send_mail", branch[2].id, 8] is Fate.EXECUTED
    assert found["send_mail", "", 7] is Fate.REUSED
    assert recovered.ledger[-1].line == ""


def test_effects_are_shown_at_their_calls(recovered: View) -> None:
    (turn,) = recovered.turns(recovered.lines.live, 7, 8)
    assert turn.calls[0].effect is not None
    assert turn.calls[0].effect.fate is Fate.REUSED
    assert turn.calls[0].result is not None


# -- partings


def test_a_branch_stands_beside_the_line_that_went_on(recovered: View) -> None:
    parting = recovered.partings[2]
    assert (parting.branch.number, parting.beside.number) == (3, 0)
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
    assert parting.told[0].startswith("[guard]")


def test_an_inner_branch_stands_beside_the_branch_it_left(recovered: View) -> None:
    assert recovered.partings[1].beside.number == 3


def test_rollbacks_are_marked_where_they_happened(recovered: View) -> None:
    forks = recovered.forks(recovered.lines.live)
    assert {step: [one.number for one in left] for step, left in forks.items()} == {3: [1], 4: [3]}
    inner = recovered.forks(recovered.lines.branches[2])
    assert {step: [one.number for one in left] for step, left in inner.items()} == {3: [1], 7: [2]}


# -- spread


def test_the_value_of_the_root_cause_is_followed_along_its_line(recovered: View) -> None:
    assert recovered.spread is not None
    (trace,) = recovered.spread.traces
    assert (trace.value, trace.origin, trace.uses) == ("137.5", 4, [7, 9])
    assert recovered.spread.reaches_end


def test_what_was_computed_from_a_traced_value_is_followed_too() -> None:
    steps = (
        said(0, "Find the total.", Source.USER),
        said(1, "I assume a price of $1,250.50 a night."),
        said(2, "Nothing new here."),
        said(3, "1250.5 times 2 makes 2501."),
        said(4, "The total is 2,501 euros."),
    )
    cause = Hypothesis(step=1, agent="a", probability=0.9)
    found = View.of(Bundle.of(run_of(*steps), verdict(Verdict.FAILURE, cause))).spread
    assert found is not None
    assert [(one.value, one.origin, one.uses, one.source) for one in found.traces] == [
        ("$1,250.50", 1, [3], ""), ("2501", 3, [4], "$1,250.50")
    ]  # fmt: skip
    assert found.touched == (3, 4)


def test_what_was_known_before_is_not_traced() -> None:
    steps = (said(0, "Pay 99.5 euros.", Source.USER), said(1, "I pay 99.5."), said(2, "Paid 99.5."))
    found = View.of(
        Bundle.of(run_of(*steps), verdict(Verdict.FAILURE, Hypothesis(step=1, agent="a", probability=1.0)))
    ).spread
    assert found is not None
    assert (found.traces, found.arose) == ((), 0)


def test_a_value_that_nobody_used_is_no_spread() -> None:
    steps = (said(0, "Go.", Source.USER), said(1, "I take AB-1234."), said(2, "Done."))
    found = View.of(
        Bundle.of(run_of(*steps), verdict(Verdict.FAILURE, Hypothesis(step=1, agent="a", probability=1.0)))
    ).spread
    assert found is not None
    assert (found.traces, found.arose, found.reaches_end) == ((), 1, False)


# -- strip


def test_the_strip_over_time_has_the_branches_under_it(recovered: View) -> None:
    strip = recovered.strip(recovered.lines.live, None)
    assert strip.axis == "time"
    assert [lane.number for lane in strip.lanes] == [1, 2, 3]
    assert strip.lanes[2].root is not None
    assert strip.root is None
    assert all(0 <= bar.x <= bar.x + bar.width <= 100.2 for bar in strip.bars)
    assert strip.bars[4].badges >= {"rollback", "effect"}


def test_the_strip_by_number_gives_each_step_its_share(lost: View) -> None:
    strip = lost.strip(lost.lines.live, "steps")
    assert (strip.axis, len(strip.bars)) == ("steps", 18)
    assert {round(bar.width, 1) for bar in strip.bars} == {5.6}
    assert strip.bars[4].root
    assert strip.reach is not None


def test_a_strip_of_many_steps_is_binned_and_loses_nothing_worth_seeing() -> None:
    error = Observation(content="no", is_error=True)
    call = ToolCall(id="c", name="t", arguments={})
    steps = tuple(
        replace(said(i, "s"), tool_calls=(call,), observations=(error,)) if i == 7_777 else said(i, "s")
        for i in range(10_000)
    )
    strip = View.of(Bundle.of(run_of(*steps))).strip(lines_of(Bundle.of(run_of(*steps))).live, None)
    assert len(strip.bars) <= MOST
    (bar,) = [bar for bar in strip.bars if bar.badges]
    assert (bar.step, bar.badges) == (7_777, {"error"})
    assert not strip.timed


def test_a_run_without_steps_has_an_empty_strip() -> None:
    view = View.of(Bundle.of(run_of()))
    assert view.strip(view.lines.live, None).bars == ()


# -- turns and search


def test_repairs_and_elections_are_shown_with_the_turn() -> None:
    marks = {
        "repaired": [{"field": "tool_calls[0]", "original": "{", "repaired": "{}"}],
        "elected": {"candidates": 3, "votes": 2, "taken": 1, "reason": "two are the same"},
    }
    view = View.of(Bundle.of(run_of(replace(said(0, "x"), extra={"agentguard": marks}))))
    (turn,) = view.turns(view.lines.live, 0, 1)
    assert [(one.field, one.original, one.repaired) for one in turn.repaired] == [("call 1", "{", "{}")]
    assert turn.elected == "Chosen among 3 candidates: 2 agreed (two are the same)"


@pytest.mark.parametrize("odd", [None, 7, [], {"told": 3, "repaired": {}, "elected": []}])
def test_what_others_left_in_our_place_is_no_trouble(odd: object) -> None:
    view = View.of(Bundle.of(run_of(replace(said(0, "x"), extra={"agentguard": odd}))))
    (turn,) = view.turns(view.lines.live, 0, 1)
    assert (turn.told, turn.repaired, turn.elected) == ((), (), "")


def test_the_actions_of_a_recovery_are_said_in_words(recovered: View) -> None:
    assert [one.did for one in recovered.bundle.recoveries][2] == (
        "undid book_room, hold_money",
        "went back to step 4 (truncate)",
        "told the agent what to do instead",
    )


def test_what_the_guard_said_stands_before_the_turn(recovered: View) -> None:
    (turn,) = recovered.turns(recovered.lines.live, 4, 5)
    assert turn.told[0].startswith("[guard] Your run was taken back")
    assert turn.look == look_of(recovered.lines.live.steps[4])


def test_an_error_is_known_by_its_flag_or_its_looks() -> None:
    looks = Observation(content="Error: the door is locked")
    told = Observation(content="Error is the title of this song", is_error=False)
    view = View.of(
        Bundle.of(
            run_of(replace(said(0, "x"), observations=(looks,)), replace(said(1, "x"), observations=(told,)))
        )
    )
    first, second = view.turns(view.lines.live, 0, 2)
    assert first.results[0].error == "looks like an error"
    assert not second.error


def test_search_finds_every_field_of_every_line(recovered: View) -> None:
    found = search(recovered.lines, "137.5")
    assert {hit.line.number for hit in found.hits} == {3}
    assert {(hit.step, hit.field) for hit in found.hits} >= {
        (4, "content"),
        (4, "tool_calls[0]"),
        (9, "content"),
    }
    assert search(recovered.lines, "  ").hits == ()
    assert search(recovered.lines, "SEND_MAIL").hits[0].found == "send_mail"


# -- bundles


def test_a_run_that_is_not_there_is_none(store: Store) -> None:
    assert Bundle.load(store, "nobody") is None


def test_rows_that_cannot_be_read_are_shown_and_named(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.write_run(run_of(said(0, "fine"), said(1, "fine, too")))
        store.write(StepRow(run_id="r", index=2, source="agent", agent="a", data={"index": "x", "odd": 1}))
        store.write(DiagnosisRow(run_id="r", method="m", verdict="failure", data={"verdict": 7}))
        store.flush(10)
        bundle = Bundle.load(store, "r")
    assert bundle is not None
    assert [step.content for step in bundle.run.steps[:2]] == ["fine", "fine, too"]
    assert '"odd": 1' in bundle.run.steps[2].content
    assert DAMAGED_STEP in bundle.run.steps[2].extra
    assert bundle.diagnosis is None
    assert any("step 2 cannot be read" in one for one in bundle.problems)
    assert any("diagnosis" in one for one in bundle.problems)
    assert View.of(bundle).turns(lines_of(bundle).live, 2, 3)[0].damaged
