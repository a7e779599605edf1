from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentguard.errors import InputError
from agentguard.schemata.cache import SchemaCache, from_members
from agentguard.schemata.keep import SchemaFile
from agentguard.schemata.model import Origin, Schema, Status
from agentguard.schemata.rules import DAY_S, CacheRules
from tests.unit.schemata.made import KINDS, schema


def test_a_new_failure_is_added_and_one_like_it_merged() -> None:
    cache = SchemaCache()
    first = cache.observe(schema("loop", "r1"), 1.0)
    again = cache.observe(schema("loop", "r2"), 2.0)
    other = cache.observe(schema("made_up", "r3"), 3.0)
    assert (first.how, again.how, other.how) == ("added", "merged", "added")
    assert again.id == first.id == "loop-r1"
    held = cache.get("loop-r1")
    assert (held.support, held.version, held.created_at, held.updated_at) == (2, 2, 1.0, 2.0)
    assert held.provenance.runs == ("r1", "r2")
    assert len(cache) == 2


def test_a_failure_seen_before_changes_nothing() -> None:
    cache = SchemaCache()
    cache.observe(schema("loop", "r1"), 1.0)
    cache.observe(schema("loop", "r2"), 2.0)
    before = list(cache)
    assert cache.observe(schema("loop", "r1"), 3.0).how == "known"
    assert cache.observe(schema("loop", "r2"), 3.0).how == "known"
    assert list(cache) == before


def test_likeness_alone_does_not_merge_other_codes_or_origins() -> None:
    cache = SchemaCache()
    cache.observe(schema("loop", "r1", codes=("mast:a",)), 1.0)
    assert cache.observe(schema("loop", "r2", codes=("mast:b",)), 1.0).how == "added"
    assert cache.observe(schema("loop", "r3", origin=Origin.INJECTED), 1.0).how == "added"
    assert cache.observe(schema("loop", "r4", codes=("mast:b", "mast:c")), 1.0).id == "loop-r2"


def test_what_is_found_counts_as_used_once_a_search() -> None:
    cache = SchemaCache()
    for kind in KINDS:
        cache.observe(schema(kind, kind), 1.0)
    found = cache.search([schema("loop", "x"), schema("loop", "y")], 1, 5.0)
    assert [row[0].schema.id for row in found] == ["loop-loop", "loop-loop"]
    held = cache.get("loop-loop")
    assert (held.used, held.used_at) == (1, 5.0)
    assert cache.get("made_up-made_up").used == 0


def test_questions_can_be_left_out_of_a_search() -> None:
    cache = SchemaCache()
    cache.observe(schema("loop", "r1", group="How many boats?"), 1.0)
    assert cache.search([schema("loop", "x")], 1, 2.0, leave_out_groups=["how many BOATS"]) == ((),)


def test_four_refutations_retire_and_confirmations_weigh_against_them() -> None:
    cache = SchemaCache()
    cache.observe(schema("loop", "r1"), 1.0)
    cache.observe(schema("made_up", "r2"), 1.0)
    cache.confirm("made_up-r2", 2.0)
    for _ in range(4):
        cache.refute("loop-r1", 3.0)
        cache.refute("made_up-r2", 3.0)
    assert cache.get("loop-r1").status is Status.RETIRED
    assert cache.get("made_up-r2").status is Status.ACTIVE
    assert [row[0].schema.id for row in cache.search([schema("loop", "x")], 1, 4.0)] == ["made_up-r2"]


def test_a_refuted_schema_is_not_revived_by_more_failures_like_it() -> None:
    cache = SchemaCache()
    cache.observe(schema("loop", "r1"), 1.0)
    for _ in range(4):
        cache.refute("loop-r1", 2.0)
    assert cache.observe(schema("loop", "r2"), 3.0).how == "merged"
    assert cache.get("loop-r1").status is Status.RETIRED
    for _ in range(4):
        cache.confirm("loop-r1", 4.0)
    assert cache.get("loop-r1").status is Status.ACTIVE


def test_what_nobody_needed_goes_and_comes_back_when_it_is_seen_again() -> None:
    cache = SchemaCache(rules=CacheRules(stale_after_s=DAY_S))
    cache.observe(schema("loop", "r1"), 0.0)
    cache.observe(schema("made_up", "r2"), 0.0)
    cache.search([schema("loop", "x")], 1, DAY_S)
    assert cache.tend(1.5 * DAY_S).stale == ("made_up-r2",)
    assert cache.tend(1.5 * DAY_S).stale == ()
    cache.observe(schema("made_up", "r3"), 2 * DAY_S)
    assert cache.get("made_up-r2").status is Status.ACTIVE


def test_hot_schemata_are_distilled_anew_from_their_latest_failures() -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    def renew(held: Schema, members: tuple[Schema, ...]) -> Schema:
        seen.append((held.id, tuple(one.id for one in members)))
        return replace(held, signature=("It repeats itself.",), correction="Try another way.")

    cache = SchemaCache(rules=CacheRules(hot_after=3, members=2), renew=renew)  # type: ignore[arg-type]
    for number in range(4):
        cache.observe(schema("loop", f"r{number}"), float(number))
    version = cache.get("loop-r0").version
    assert cache.tend(9.0).renewed == ("loop-r0",)
    held = cache.get("loop-r0")
    assert seen == [("loop-r0", ("loop-r2", "loop-r3"))]
    assert (held.signature, held.correction) == (("It repeats itself.",), "Try another way.")
    assert (held.version, held.support, held.updated_at) == (version + 1, 4, 9.0)
    assert cache.tend(10.0).renewed == ()


def test_use_makes_hot_too_and_without_members_nothing_is_made() -> None:
    cache = SchemaCache(rules=CacheRules(hot_after=2))
    cache.observe(schema("loop", "r1"), 0.0)
    for at in (1.0, 2.0):
        cache.search([schema("loop", "x")], 1, at)
    before = cache.get("loop-r1")
    assert cache.tend(3.0).renewed == ()
    assert cache.get("loop-r1") == before


def test_what_changed_while_it_was_distilled_is_left_alone() -> None:
    def renew(held: Schema, members: object) -> Schema:
        del members
        cache.observe(schema("loop", "r9"), 5.0)
        return replace(held, signature=("Something old.",))

    cache = SchemaCache(rules=CacheRules(hot_after=1), renew=renew)
    cache.observe(schema("loop", "r1"), 0.0)
    cache.observe(schema("loop", "r2"), 1.0)
    assert cache.tend(6.0).renewed == ()
    assert cache.get("loop-r1").support == 3
    assert cache.get("loop-r1").signature == KINDS["loop"]


def test_the_embedded_way_keeps_what_members_share() -> None:
    assert from_members(schema(), [schema()]) is None
    made = from_members(schema(), [schema("loop", "r1"), schema("loop", "r2")])
    assert made is not None
    assert made.signature == KINDS["loop"]


def test_the_number_of_schemata_is_bounded() -> None:
    cache = SchemaCache(rules=CacheRules(new_over=0.0, most=10, kept_at_limit=0.8))
    for number in range(60):
        made = replace(schema("loop", f"r{number}"), signature=(f"kind {number} of trouble {number * 7}",))
        cache.observe(made, float(number))
        assert len(cache) <= 10
        assert len(list(cache)) <= 20
    assert len(cache) >= 8


def test_unknown_ids_are_refused() -> None:
    cache = SchemaCache()
    for call in (cache.confirm, cache.refute):
        with pytest.raises(InputError, match="no schema has the id 'x'"):
            call("x", 1.0)


def test_it_outlives_the_process(tmp_path: Path) -> None:
    keep = SchemaFile(tmp_path / "s.jsonl")
    with SchemaCache(keep) as cache:
        cache.observe(schema("loop", "r1"), 1.0)
        cache.observe(schema("loop", "r2"), 2.0)
        cache.confirm("loop-r1", 3.0)
    again = SchemaCache(SchemaFile(tmp_path / "s.jsonl"))
    assert list(again) == list(cache)
    assert again.observe(schema("loop", "r2"), 4.0).how == "known"


def test_what_could_not_be_saved_is_saved_next_time(tmp_path: Path) -> None:
    class Full(SchemaFile):
        full = True

        def put(self, schemata: object) -> None:
            if self.full:
                raise OSError("no space")
            super().put(schemata)  # type: ignore[arg-type]

    keep = Full(tmp_path / "s.jsonl")
    cache = SchemaCache(keep)
    cache.observe(schema("loop", "r1"), 1.0)
    with pytest.raises(OSError, match="no space"):
        cache.save()
    keep.full = False
    cache.save()
    assert [one.id for one in keep.load()] == ["loop-r1"]


def test_threads_lose_no_count() -> None:
    cache = SchemaCache()
    cache.observe(schema("loop", "r0"), 0.0)

    def work(number: int) -> None:
        for turn in range(10):
            cache.observe(schema("loop", f"t{number}-{turn}"), 1.0)
            cache.search([schema("loop", "x")], 1, 1.0)
            cache.confirm("loop-r0", 1.0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = cache.get("loop-r0")
    assert (held.support, held.used, held.confirmed) == (41, 40, 40)


class Machine(RuleBasedStateMachine):
    """Any calls in any order, beside a second cache that gets the same ones."""

    def __init__(self) -> None:
        super().__init__()
        rules = CacheRules(most=3, hot_after=3, members=2, stale_after_s=50.0)
        self.caches = (SchemaCache(rules=rules), SchemaCache(rules=rules))
        self.now = 0.0
        self.versions: dict[str, int] = {}
        self.runs: set[str] = set()

    @rule(
        kind=st.sampled_from(sorted(KINDS)),
        run=st.integers(0, 12),
        code=st.sampled_from(["", "mast:a", "mast:b"]),
        origin=st.sampled_from(Origin),
    )
    def observe(self, kind: str, run: int, code: str, origin: Origin) -> None:
        name = f"{run}{code}{origin}"
        made = schema(kind, name, codes=(code,) if code else (), origin=origin)
        one, other = (cache.observe(made, self.now) for cache in self.caches)
        assert one == other
        assert name in self.caches[0].get(one.id).provenance.runs
        assert self.caches[0].get(one.id).provenance.origin is origin

    @rule(kind=st.sampled_from(sorted(KINDS)), k=st.integers(1, 4))
    def search(self, kind: str, k: int) -> None:
        for cache in self.caches:
            found = cache.search([schema(kind, "x")], k, self.now)[0]
            assert all(match.schema.status is Status.ACTIVE for match in found)
            assert len(found) == min(k, len(cache))

    @rule(place=st.integers(0, 20), right=st.booleans())
    def verdict(self, place: int, right: bool) -> None:
        ids = [one.id for one in self.caches[0]]
        if ids:
            for cache in self.caches:
                (cache.confirm if right else cache.refute)(ids[place % len(ids)], self.now)

    @rule()
    def tend(self) -> None:
        one, other = (cache.tend(self.now) for cache in self.caches)
        assert one == other
        assert not set(one.refuted) & set(one.stale)

    @rule(step=st.floats(-5, 60))
    def wait(self, step: float) -> None:
        self.now = max(0.0, self.now + step)

    @invariant()
    def the_same_calls_leave_the_same_cache(self) -> None:
        assert list(self.caches[0]) == list(self.caches[1])

    @invariant()
    def it_is_bounded_and_sound(self) -> None:
        cache = self.caches[0]
        held = list(cache)
        assert len(cache) <= 3
        assert len(held) <= 7  # three active, three retired, and one that was just touched
        assert len({one.id for one in held}) == len(held)
        for one in held:
            assert one.support >= 1
            assert one.version >= self.versions.get(one.id, 1) or one.version == 1
            assert not (one.status is Status.ACTIVE and cache.rules.refuted(one))
            assert one.updated_at >= one.created_at
        self.versions = {one.id: one.version for one in held}


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)


def test_what_one_run_taught_is_quarantined_until_another_bears_it_out() -> None:
    cache = SchemaCache()
    learnt = replace(schema("loop", "r1", origin=Origin.RECOVERED), confirmed=1)
    cache.observe(learnt, 1.0, recovered=True)
    assert cache.get("loop-r1").status is Status.QUARANTINED
    assert cache.search([learnt], 1, 2.0) == ((),)
    again = replace(schema("loop", "r2", origin=Origin.RECOVERED), confirmed=1)
    assert cache.observe(again, 3.0, recovered=True).how == "merged"
    held = cache.get("loop-r1")
    assert (held.status, held.confirmed, held.support) == (Status.ACTIVE, 2, 2)
    assert len(cache) == 1


def test_what_was_never_borne_out_goes_as_others_do() -> None:
    cache = SchemaCache(rules=CacheRules(most=1))
    for i, kind in enumerate(("loop", "made_up", "ignored")):
        learnt = replace(schema(kind, kind, origin=Origin.RECOVERED), confirmed=1)
        cache.observe(learnt, float(i), recovered=True)
    assert sum(1 for _ in cache) <= 2
    cache.tend(1e9)
    assert all(one.status is Status.RETIRED for one in cache)


def test_a_schema_that_is_proven_by_a_person_leaves_quarantine() -> None:
    cache = SchemaCache()
    cache.observe(replace(schema("loop", "r1"), confirmed=1), 1.0, recovered=True)
    assert cache.confirm("loop-r1", 2.0).status is Status.ACTIVE


def test_every_change_moves_the_time_on_so_that_others_notice_it() -> None:
    cache = SchemaCache()
    cache.observe(schema("loop", "r1"), 5.0)
    times = [cache.confirm("loop-r1", 1.0).updated_at for _ in range(3)]
    assert sorted(set(times)) == times
    assert times[0] > 5.0
