"""The effect of each edit on a run that shows it."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson
import pytest

from agentguard.evals.inject.edits.base import RewrittenRun, TailHandling, get_edit_registry
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.unit.evals.inject.runs import call, record, result, said, shop, tools

LOOK, CLAIM, ASK, GET, UPDATE, DONE, BYE = 2, 3, 6, 5, 8, 9, 10


def make(name: str, step: int, *, run: Trajectory | None = None, seed: int = 0) -> RewrittenRun:
    return get_edit_registry().get(name).apply(run or shop().trajectory, step, random.Random(seed))


def some(name: str, step: int, wanted, *, run: Trajectory | None = None) -> RewrittenRun:
    """Return the first rewritten run, over the seeds, for which ``wanted`` is true."""
    for seed in range(60):
        made = make(name, step, run=run, seed=seed)
        if wanted(made):
            return made
    raise AssertionError(f"no seed of 60 makes the wanted {name}")


def texts(steps: tuple[Step, ...]) -> str:
    return "\n".join(text for step in steps for _, text in step.texts())


def test_fixture_has_the_expected_steps():
    steps = shop().trajectory.steps
    assert [bool(s.tool_calls) for s in steps] == [i in (LOOK, GET, UPDATE) for i in range(len(steps))]
    assert steps[BYE].source is Source.USER


def test_wrong_argument_of_a_write_succeeds_and_is_used_later():
    made = some("parameter_error", UPDATE, lambda m: m.tail is TailHandling.PROPAGATED)
    before, after = shop().trajectory.steps[UPDATE], made.steps[UPDATE]
    (key,) = [
        k
        for k in after.tool_calls[0].arguments
        if after.tool_calls[0].arguments != before.tool_calls[0].arguments
        and after.tool_calls[0].arguments[k] != before.tool_calls[0].arguments[k]
    ]
    wrong = after.tool_calls[0].arguments[key]
    assert orjson.loads(after.observations[0].content)[key] == wrong
    assert orjson.loads(after.tool_calls[0].raw_arguments) == after.tool_calls[0].arguments
    assert wrong in made.steps[DONE].content
    assert before.tool_calls[0].arguments[key] not in made.steps[DONE].content


def test_unknown_code_is_refused_and_agent_gives_up():
    made = make("parameter_error", GET)
    assert made.tail is TailHandling.TRUNCATED
    wrong = made.steps[GET].tool_calls[0].arguments["order_id"]
    assert wrong not in texts(shop().trajectory.steps)
    assert "K77RQ2" not in made.steps[GET].observations[0].content
    assert not any(step.tool_calls and step.tool_calls[0].name == "update_order" for step in made.steps)
    agents = [step for step in made.steps if step.source is Source.AGENT]
    assert not agents[-1].tool_calls
    assert agents[-1].content
    assert made.steps[-1].content == "Thank you, that is all."


def test_unknown_tool_is_called():
    run = shop().trajectory
    made = make("invalid_action", GET)
    name = made.steps[GET].tool_calls[0].name
    assert name not in {tool.name for tool in run.tools}
    assert made.steps[GET].observations[0].tool == name
    assert made.steps[GET].tool_calls[0].arguments == run.steps[GET].tool_calls[0].arguments


def test_unparsable_arguments_are_written():
    for seed in range(20):
        made = make("format_error", UPDATE, seed=seed)
        wrong = made.steps[UPDATE].tool_calls[0]
        assert wrong.arguments is None
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(wrong.raw_arguments)


def test_error_text_is_taken_from_the_run():
    messages = [
        said("user", "Look up K77RQ2 and K81TM9."),
        call("get_order", "call_a", order_id="K7XXXX"),
        result("call_a", "get_order", "Error: no such order in our books"),
        call("get_order", "call_b", order_id="K81TM9"),
        result("call_b", "get_order", "An order of 88 lamps."),
        said("assistant", "K81TM9 has 88 lamps."),
    ]
    made = make("parameter_error", 2, run=record(messages).trajectory)
    assert made.steps[2].observations[0].content == "Error: no such order in our books"


def test_ignored_error_is_in_the_next_turn():
    made = make("tool_error_ignored", UPDATE)
    run = shop().trajectory
    assert made.step == UPDATE
    assert made.cause.step == DONE
    assert made.steps[UPDATE].tool_calls == run.steps[UPDATE].tool_calls
    assert made.steps[UPDATE].observations != run.steps[UPDATE].observations
    assert made.steps[DONE:] == run.steps[DONE:]
    assert made.tail is TailHandling.KEPT


def test_misread_value_is_used_in_later_turns():
    made = some("misread_observation", CLAIM, lambda m: m.tail is TailHandling.PROPAGATED)
    run = shop().trajectory
    (change,) = [c for c in made.changes if c.step == CLAIM]
    assert change.field == "content"
    assert made.steps[LOOK] == run.steps[LOOK]
    assert made.steps[DONE].content != run.steps[DONE].content
    assert made.steps[GET].observations == run.steps[GET].observations


def test_unused_value_is_not_misread():
    """The ship date of the first read is never used again, so misreading it fails no run."""
    for seed in range(40):
        made = make("misread_observation", CLAIM, seed=seed)
        assert "2031-03-14" in made.steps[CLAIM].content


def test_recalled_value_is_absent_from_the_run():
    run = shop().trajectory
    for seed in range(20):
        made = make("hallucinated_memory", DONE, seed=seed)
        new = made.cause.reason.split("recalls ")[1].split(",")[0]
        assert new in made.steps[DONE].content
        assert new not in texts(run.steps)


def test_values_of_the_user_are_unchanged():
    """The user gave the new date: the agent may recall it wrongly, the user's turns are unchanged."""
    made = some("hallucinated_memory", ASK, lambda m: "2031-03-15" not in m.steps[ASK].content)
    users = [step for step in made.steps if step.source is Source.USER]
    assert [s.content for s in users] == [
        s.content for s in shop().trajectory.steps if s.source is Source.USER
    ][: len(users)]
    assert "2031-03-15" not in texts(made.steps[ASK:])


def test_confirmation_is_omitted():
    made = make("dropped_constraint", ASK)
    run = shop().trajectory
    assert [s.content for s in made.steps] == [s.content for s in (*run.steps[:ASK], *run.steps[ASK + 2 :])]
    assert made.steps[ASK].tool_calls[0].name == "update_order"
    assert made.cause.step == ASK


def test_run_without_rules_has_no_dropped_constraint():
    run = replace(shop().trajectory, system_prompts={}, task="Move my order.")
    assert not any(
        get_edit_registry().get("dropped_constraint").applies(run, i) for i in range(len(run.steps))
    )


def test_run_ends_before_its_task():
    made = make("progress_misjudge", GET)
    turn = made.steps[GET]
    assert not turn.tool_calls
    assert not turn.observations
    assert turn.content
    assert "update_order" not in {c.name for step in made.steps for c in step.tool_calls}
    assert made.steps[-1].source is Source.USER
    skipped = make("progress_misjudge", UPDATE)
    assert skipped.tail is TailHandling.TRUNCATED or skipped.steps[UPDATE].content.startswith("Order K77RQ2")


def test_loop_continues_to_the_end():
    made = make("repeat_loop", LOOK)
    first = made.steps[LOOK]
    again = made.steps[LOOK + 1 :]
    assert 3 <= len(again) <= 10
    assert made.cause.step == LOOK + 1
    for step in again:
        assert step.tool_calls[0].arguments == first.tool_calls[0].arguments
        assert step.observations[0].content == first.observations[0].content
        assert step.observations[0].call_id == step.tool_calls[0].id
    ids = [step.tool_calls[0].id for step in (first, *again)]
    assert len(set(ids)) == len(ids)
    assert {len(one) for one in ids} == {len(ids[0])}
    assert all(one.startswith("call_") for one in ids)


def test_step_limit_ends_the_run():
    made = make("step_limit", GET)
    assert made.steps == shop().trajectory.steps[: GET + 1]
    assert made.cause.step == GET
    assert made.cause.module == "system"


def kitchen() -> Trajectory:
    """Return a run whose turns describe their calls, about two named items."""
    messages = [
        said("user", "Bring me the order."),
        {**call("get_order", "call-1-0", item="red lamp"), "content": "I look at the red lamp first."},
        result("call-1-0", "get_order", "A red lamp beside a blue lamp."),
        {**call("get_order", "call-3-0", item="blue lamp"), "content": "Now the blue lamp."},
        result("call-3-0", "get_order", "A blue lamp."),
        {**call("update_order", "call-5-0", item="red lamp"), "content": "I take the red lamp."},
        result("call-5-0", "update_order", "Taken."),
        said("assistant", "Here is the red lamp."),
    ]
    return record(messages).trajectory


def test_call_differs_from_text_of_turn():
    made = make("misaligned_action", 3, run=kitchen())
    assert made.steps[3].content == "I take the red lamp."
    assert made.steps[3].tool_calls[0].arguments == {"item": "blue lamp"}


def test_ascending_ids_continue():
    made = make("repeat_loop", 1, run=kitchen())
    ids = [c.id for step in made.steps for c in step.tool_calls]
    assert ids[:2] == ["call-1-0", "call-6-0"]
    assert len(set(ids)) == len(ids)


def test_times_continue_without_a_gap():
    run = shop().trajectory
    steps = tuple(replace(s, started_at=10.0 * s.index, ended_at=10.0 * s.index + 4) for s in run.steps)
    made = make("repeat_loop", LOOK, run=replace(run, steps=steps))
    for before, after in zip(made.steps[LOOK:], made.steps[LOOK + 1 :], strict=False):
        assert after.started_at == before.ended_at
        assert after.ended_at == after.started_at + 4


def test_tools_of_fixture_are_called():
    assert {tool["function"]["name"] for tool in tools()} >= {
        c.name for step in shop().trajectory.steps for c in step.tool_calls
    }


def player() -> Trajectory:
    """Return a run whose turns have modules and contain their calls as text."""
    run = kitchen()
    steps = tuple(
        replace(s, modules={"planning": s.content, "action": f"Tool: {c.name} {c.raw_arguments}"})
        if s.tool_calls and (c := s.tool_calls[0])
        else s
        for s in run.steps
    )
    return replace(run, steps=steps)


@pytest.mark.parametrize("name", ["invalid_action", "format_error", "misaligned_action"])
def test_written_out_call_matches_the_executed_call(name):
    for seed in range(10):
        made = make(name, 3, run=player(), seed=seed)
        turn = made.steps[3]
        wrong = turn.tool_calls[0]
        assert turn.modules == {
            "planning": "I take the red lamp.",
            "action": f"Tool: {wrong.name} {wrong.raw_arguments}",
        }
        assert made.steps[-1].modules in ({}, {"reflection": made.steps[-1].content})


def test_agents_with_modules_keep_them_to_the_end():
    made = make("progress_misjudge", 2, run=player())
    assert made.steps[2].modules == {"reflection": made.steps[2].content}
    retried = some("format_error", 3, lambda m: len(m.steps) > 5, run=player())
    assert retried.steps[4].modules == retried.steps[3].modules
    assert retried.steps[4].tool_calls[0].raw_arguments == retried.steps[3].tool_calls[0].raw_arguments
