"""Invariants of every edit: the prefix, the task, the pairing of calls, and a complete list of changes."""

from __future__ import annotations

import random
from dataclasses import fields

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from agentguard.errors import InputError
from agentguard.evals.inject.edits.base import RewrittenRun, TailHandling, get_edit_registry
from agentguard.evals.inject.error_injection import apply_edit
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.model import Record, Source, Step, Trajectory
from agentguard.trajectory.safe_json import dumps
from tests.unit.evals.inject.runs import runs, shop

NAMES = get_edit_registry().names()
_NUMBERING = {"index", "source_index", "started_at", "ended_at"}


def places(run: Trajectory, name: str) -> list[int]:
    return [i for i in range(len(run.steps)) if get_edit_registry().get(name).applies(run, i)]


@pytest.mark.parametrize("name", NAMES)
def test_every_edit_names_existing_codes_and_its_module(name):
    edit = get_edit_registry().get(name)
    known = TaxonomyCatalog.load()
    assert edit.name == name
    assert edit.summary
    assert edit.codes[0].startswith("agent_error:")
    for code in edit.codes:
        assert known.get_code(code)
    assert known.get_code(edit.codes[0]).module == edit.module


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"misaligned_action"}))
def test_every_edit_applies_to_an_ordinary_run(name):
    assert places(shop().trajectory, name)


@pytest.mark.parametrize("name", NAMES)
def test_inapplicable_edit_is_rejected(name):
    run = shop().trajectory
    for step in (0, 1, len(run.steps) - 1, len(run.steps), -1):
        with pytest.raises(InputError, match=name):
            get_edit_registry().get(name).apply(run, step, random.Random(1))


@settings(max_examples=60)
@given(record=runs(), seed=st.integers(0, 3))
def test_every_rewriting_keeps_the_invariants(record, seed):
    run = record.trajectory
    for name in NAMES:
        edit = get_edit_registry().get(name)
        for step in places(run, name):
            made = edit.apply(run, step, random.Random(seed))
            assert made == edit.apply(run, step, random.Random(seed))
            check_prefix(run, made, step)
            check_pairing(run, made)
            check_declared(run, made)
            check_cause(made)


def check_prefix(run: Trajectory, made: RewrittenRun, step: int) -> None:
    assert made.step >= step
    assert made.steps[: made.step] == run.steps[: made.step]
    assert [dumps_of(s) for s in made.steps[: made.step]] == [dumps_of(s) for s in run.steps[: made.step]]
    assert [s.index for s in made.steps] == list(range(len(made.steps)))
    places = [s.source_index for s in made.steps]
    assert places == sorted(set(places))


def check_pairing(run: Trajectory, made: RewrittenRun) -> None:
    ids = [call.id for step in made.steps for call in step.tool_calls]
    assert len(set(ids)) == len(ids)
    for step in made.steps:
        called = {call.id: call for call in step.tool_calls}
        answered = [seen.call_id for seen in step.observations]
        assert set(answered) <= set(called)
        assert len(set(answered)) == len(answered)
        for seen in step.observations:
            assert seen.tool == called[seen.call_id].name


def check_cause(made: RewrittenRun) -> None:
    cause = made.cause
    assert made.step - 1 <= cause.step < len(made.steps)
    turn = made.steps[cause.step]
    assert turn.source is Source.AGENT
    assert turn.agent == cause.agent
    assert cause.module
    assert cause.codes
    assert cause.reason


def check_declared(run: Trajectory, made: RewrittenRun) -> None:
    """Align two runs by the declared new and removed steps, and compare the rest field by field."""
    new = {c.step for c in made.changes if c.field == "step" and c.after == "inserted"}
    gone = {c.step for c in made.changes if c.field == "step" and c.before == "removed"}
    ends = [c.step for c in made.changes if c.field == "steps"]
    olds = [s for s in run.steps if s.index not in gone and not (ends and s.index >= ends[0])]
    news = [s for s in made.steps if s.index not in new]
    assert len(olds) == len(news)
    declared = {
        (c.step, c.field.split("[")[0].split(".")[0]) for c in made.changes if not c.field.startswith("step")
    }
    differ = {
        (now.index, field.name)
        for before, now in zip(olds, news, strict=True)
        for field in fields(Step)
        if field.name not in _NUMBERING and getattr(before, field.name) != getattr(now, field.name)
    }
    assert differ == declared
    assert made.changes
    assert (made.tail is TailHandling.TRUNCATED) or not ends


def texts(record: Record) -> list[list[tuple[str, str]]]:
    return [list(step.texts()) for step in record.trajectory.steps]


def dumps_of(step: Step) -> bytes:
    return repr(step).encode()


@settings(max_examples=40)
@given(record=runs(), data=st.data())
def test_rewritten_run_round_trips(record, data):
    found = [(name, step) for name in NAMES for step in places(record.trajectory, name)]
    if not found:
        return
    name, step = data.draw(st.sampled_from(found))
    made = apply_edit(record, get_edit_registry().get(name), step, rng=random.Random(3))
    log = formats().get("event_log")
    events = [orjson.loads(dumps(event)) for event in log.dump(made, annotation=True)]
    assert list(log.parse(events, name="x")) == [made]
    chat = formats().get("openai_chat")
    (again,) = chat.parse(chat.dump(made), name="x")
    assert texts(again) == texts(made)
    assert formats().get("atif").dump(made)


@given(record=runs(), data=st.data())
def test_only_the_annotation_reveals_a_rewritten_run(record, data):
    found = [(name, step) for name in NAMES for step in places(record.trajectory, name)]
    if not found:
        return
    name, step = data.draw(st.sampled_from(found))
    made = apply_edit(record, get_edit_registry().get(name), step)
    before, after = record.trajectory, made.trajectory
    assert (after.task, after.tools, after.system_prompts, after.extra, after.format) == (
        before.task,
        before.tools,
        before.system_prompts,
        before.extra,
        before.format,
    )
    text = dumps([dumps_of(s).decode() for s in after.steps]).decode() + after.id
    assert "inject" not in text
    assert name not in text
