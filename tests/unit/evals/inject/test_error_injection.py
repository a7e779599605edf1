"""Rewriting as a whole: eligible runs, the record, and determinism of the draw."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from agentguard.errors import InputError, UnknownPlugin
from agentguard.evals.inject.edits.base import RewrittenRun, TailHandling, get_edit_registry
from agentguard.evals.inject.edits.run_editor import RunEditor
from agentguard.evals.inject.edits.run_index import build_run_index
from agentguard.evals.inject.error_injection import (
    RewritePlan,
    apply_edit,
    compute_fingerprint,
    copy_passed_record,
    rewrite_record,
    rewrite_records,
)
from agentguard.evals.inject.rates import NATURAL_RATES, parse_rates
from agentguard.evals.splits import list_groups
from agentguard.trajectory.model import Branch, Record, RootCause, Trajectory
from tests.data import shared_data
from tests.unit.evals.inject.runs import shop

MANY = RewritePlan(per_run=12, rates=parse_rates("uniform"))


def numbered(count: int) -> list[Record]:
    return [replace(shop(), trajectory=replace(shop().trajectory, id=f"run-{n}")) for n in range(count)]


def test_only_passed_runs_are_rewritten():
    failed = replace(shop(), annotation=replace(shop().annotation, failed=True))
    unknown = replace(shop(), annotation=replace(shop().annotation, failed=None))
    with pytest.raises(InputError, match="failed already"):
        list(rewrite_record(failed))
    with pytest.raises(InputError, match="failed already"):
        list(rewrite_record(failed, RewritePlan(assume_passed=True)))
    with pytest.raises(InputError, match=r"not known to have passed.*--assume-passed"):
        list(rewrite_record(unknown))
    assert list(rewrite_record(unknown, replace(MANY, assume_passed=True)))


def test_annotation_describes_the_injection():
    source = shop()
    for record in rewrite_record(source, MANY):
        judged = record.annotation
        told = judged.extra["injected"]
        edit = get_edit_registry().get(told["edit"])
        assert judged.failed
        assert judged.root_cause == judged.failures[0]
        assert judged.root_cause.codes == edit.codes
        assert judged.root_cause.module == edit.module
        assert judged.root_cause.agent == "assistant"
        assert (judged.answer, judged.group) == ("A118", "q 1")
        assert set(judged.extra) == {"origin", "injected"}
        assert told["source_run"] == "run-7"
        assert told["tail"] in tuple(TailHandling)
        assert told["fields"]
        assert all(set(field) == {"step", "field", "before", "after"} for field in told["fields"])


def test_source_without_group_shares_one_with_its_rewritings():
    source = replace(shop(), annotation=replace(shop().annotation, group=None))
    made = [copy_passed_record(source), *rewrite_record(source, MANY)]
    assert len(made) > 3
    assert len(set(list_groups(made))) == 1


def test_rewritten_runs_are_unique():
    made = list(rewrite_record(shop(), MANY))
    assert len({record.trajectory.id for record in made}) == len(made)
    places = [(r.annotation.extra["injected"]["edit"], r.annotation.root_cause.step) for r in made]
    assert len(set(places)) == len(places)


def test_draw_depends_only_on_seed_and_run():
    plan = replace(MANY, per_run=3)
    alone = {r.trajectory.id: list(rewrite_record(r, plan)) for r in numbered(3)}
    together = list(rewrite_records(reversed(numbered(3)), plan))
    assert sorted(r.trajectory.id for r in together) == sorted(
        r.trajectory.id for made in alone.values() for r in made
    )
    other = list(rewrite_records(numbered(3), replace(plan, seed=1)))
    assert {r.trajectory.id for r in other} != {r.trajectory.id for r in together}


def test_applicable_kinds_are_drawn_by_rate():
    plan = RewritePlan(rates={"format_error": 1, "repeat_loop": 4})
    made = Counter(r.annotation.extra["injected"]["edit"] for r in rewrite_records(numbered(300), plan))
    assert sum(made.values()) == 300
    assert 0.12 < made["format_error"] / 300 < 0.28


def test_inapplicable_kind_gives_no_run():
    assert list(rewrite_record(shop(), RewritePlan(rates={"misaligned_action": 1}))) == []


def test_rates_are_validated():
    assert set(NATURAL_RATES) == set(get_edit_registry().names())
    assert parse_rates("natural", kinds=("step_limit",)) == {"step_limit": NATURAL_RATES["step_limit"]}
    assert set(parse_rates("uniform").values()) == {1.0}
    with pytest.raises(UnknownPlugin):
        parse_rates("natural", kinds=("no_such",))


def test_branches_of_removed_steps_are_dropped():
    run = shop().trajectory
    branches = (
        Branch(id="early", fork_step=3, steps=run.steps[3:4]),
        Branch(id="late", fork_step=10, steps=run.steps[10:]),
        Branch(id="on late", fork_step=11, steps=(), parent="late"),
        Branch(id="on early", fork_step=4, steps=(), parent="early"),
    )
    record = replace(shop(), trajectory=replace(run, branches=branches))
    made = apply_edit(record, get_edit_registry().get("repeat_loop"), 5)
    assert [branch.id for branch in made.trajectory.branches] == ["early", "on early"]
    (told,) = [f for f in made.annotation.extra["injected"]["fields"] if f["field"] == "branches"]
    assert told["before"] == "2 left out"


def test_fingerprint_covers_the_recorded_run():
    run = shop().trajectory
    assert compute_fingerprint(run) == compute_fingerprint(shop().trajectory)
    assert compute_fingerprint(run) != compute_fingerprint(replace(run, id="other"))


class Shout:
    """Third-party edit: the last turn in capitals."""

    name = "shout"
    summary = "the last turn is in capitals"
    codes = ("agent_error:action.format_error",)
    module = "action"

    def applies(self, run: Trajectory, step: int) -> bool:
        return run.steps[step].source == "agent" and run.steps[step].content != ""

    def apply(self, run: Trajectory, step: int, rng: random.Random) -> RewrittenRun:
        draft = RunEditor(build_run_index(run), rng)
        draft.set(step, replace(run.steps[step], content=run.steps[step].content.upper()))
        cause = RootCause(step=step, agent="assistant", module=self.module, codes=self.codes)
        return draft.finish(step=step, cause=cause, tail=TailHandling.KEPT)


def test_third_party_edit_is_supported(monkeypatch):
    registry = get_edit_registry()
    monkeypatch.setattr(registry, "_plugins", dict(registry._plugins))
    monkeypatch.setattr(registry, "_names", registry._names)
    registry.register("shout", Shout())
    (made,) = rewrite_record(shop(), RewritePlan(rates=parse_rates("uniform", kinds=("shout",))))
    told = made.annotation.extra["injected"]
    assert told["edit"] == "shout"
    assert made.trajectory.steps[told["step"]].content.isupper()


def test_real_tool_calling_runs_are_rewritten():
    """A good part of a real set can be rewritten, and no error kind dominates."""
    from agentguard.trajectory.formats.reader import load_records

    path = shared_data("tau_bench/gpt-4o-airline.dev.json")
    passed = [r for r in load_records(path) if r.annotation.failed is False]
    made = list(rewrite_records(passed, RewritePlan(per_run=2)))
    kinds = Counter(r.annotation.extra["injected"]["edit"] for r in made)
    assert len(made) > len(passed)
    assert len(kinds) >= 8
    assert max(kinds.values()) < len(made) / 2
    last = sum(r.annotation.root_cause.step == len(r.trajectory.steps) - 1 for r in made)
    assert last < len(made) / 4
