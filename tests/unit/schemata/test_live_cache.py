from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentguard.errors import InputError
from agentguard.schemata.cache_policy import DAY_S, CachePolicy
from agentguard.schemata.live_cache import SchemaCache, redistill_from_members
from agentguard.schemata.model import ErrorSchema, SchemaOrigin, SchemaStatus
from agentguard.schemata.persistence import FileSchemaStore
from tests.unit.schemata.builders import KINDS, schema


def test_new_failure_is_added_and_similar_one_is_merged() -> None:
    cache = SchemaCache()
    first = cache.insert(schema("loop", "r1"), 1.0)
    again = cache.insert(schema("loop", "r2"), 2.0)
    other = cache.insert(schema("made_up", "r3"), 3.0)
    assert (first.outcome, again.outcome, other.outcome) == ("added", "merged", "added")
    assert again.schema_id == first.schema_id == "loop-r1"
    held = cache.get("loop-r1")
    assert (held.support, held.version, held.created_at, held.updated_at) == (2, 2, 1.0, 2.0)
    assert held.provenance.runs == ("r1", "r2")
    assert len(cache) == 2


def test_known_failure_changes_nothing() -> None:
    cache = SchemaCache()
    cache.insert(schema("loop", "r1"), 1.0)
    cache.insert(schema("loop", "r2"), 2.0)
    before = list(cache)
    assert cache.insert(schema("loop", "r1"), 3.0).outcome == "known"
    assert cache.insert(schema("loop", "r2"), 3.0).outcome == "known"
    assert list(cache) == before


def test_similarity_does_not_merge_other_codes_or_origins() -> None:
    cache = SchemaCache()
    cache.insert(schema("loop", "r1", codes=("mast:a",)), 1.0)
    assert cache.insert(schema("loop", "r2", codes=("mast:b",)), 1.0).outcome == "added"
    assert cache.insert(schema("loop", "r3", origin=SchemaOrigin.INJECTED), 1.0).outcome == "added"
    assert cache.insert(schema("loop", "r4", codes=("mast:b", "mast:c")), 1.0).schema_id == "loop-r2"


def test_found_schema_counts_as_used_once_per_search() -> None:
    cache = SchemaCache()
    for kind in KINDS:
        cache.insert(schema(kind, kind), 1.0)
    found = cache.search([schema("loop", "x"), schema("loop", "y")], 1, 5.0)
    assert [row[0].schema.id for row in found] == ["loop-loop", "loop-loop"]
    held = cache.get("loop-loop")
    assert (held.used, held.used_at) == (1, 5.0)
    assert cache.get("made_up-made_up").used == 0


def test_groups_can_be_excluded_from_a_search() -> None:
    cache = SchemaCache()
    cache.insert(schema("loop", "r1", group="How many boats?"), 1.0)
    assert cache.search([schema("loop", "x")], 1, 2.0, excluded_groups=["how many BOATS"]) == ((),)


def test_four_refutations_retire_and_confirmations_weigh_against_them() -> None:
    cache = SchemaCache()
    cache.insert(schema("loop", "r1"), 1.0)
    cache.insert(schema("made_up", "r2"), 1.0)
    cache.record_confirmation("made_up-r2", 2.0)
    for _ in range(4):
        cache.record_refutation("loop-r1", 3.0)
        cache.record_refutation("made_up-r2", 3.0)
    assert cache.get("loop-r1").status is SchemaStatus.RETIRED
    assert cache.get("made_up-r2").status is SchemaStatus.ACTIVE
    assert [row[0].schema.id for row in cache.search([schema("loop", "x")], 1, 4.0)] == ["made_up-r2"]


def test_refuted_schema_is_not_revived_by_similar_failures() -> None:
    cache = SchemaCache()
    cache.insert(schema("loop", "r1"), 1.0)
    for _ in range(4):
        cache.record_refutation("loop-r1", 2.0)
    assert cache.insert(schema("loop", "r2"), 3.0).outcome == "merged"
    assert cache.get("loop-r1").status is SchemaStatus.RETIRED
    for _ in range(4):
        cache.record_confirmation("loop-r1", 4.0)
    assert cache.get("loop-r1").status is SchemaStatus.ACTIVE


def test_unused_schema_is_evicted_and_returns_when_seen_again() -> None:
    cache = SchemaCache(policy=CachePolicy(stale_after_s=DAY_S))
    cache.insert(schema("loop", "r1"), 0.0)
    cache.insert(schema("made_up", "r2"), 0.0)
    cache.search([schema("loop", "x")], 1, DAY_S)
    assert cache.maintain(1.5 * DAY_S).stale_ids == ("made_up-r2",)
    assert cache.maintain(1.5 * DAY_S).stale_ids == ()
    cache.insert(schema("made_up", "r3"), 2 * DAY_S)
    assert cache.get("made_up-r2").status is SchemaStatus.ACTIVE


def test_hot_schemata_are_distilled_again_from_latest_failures() -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    def renew(held: ErrorSchema, members: tuple[ErrorSchema, ...]) -> ErrorSchema:
        seen.append((held.id, tuple(one.id for one in members)))
        return replace(held, signature=("It repeats itself.",), correction="Try another way.")

    cache = SchemaCache(policy=CachePolicy(redistill_threshold=3, max_members=2), redistill=renew)  # type: ignore[arg-type]
    for number in range(4):
        cache.insert(schema("loop", f"r{number}"), float(number))
    version = cache.get("loop-r0").version
    assert cache.maintain(9.0).redistilled_ids == ("loop-r0",)
    held = cache.get("loop-r0")
    assert seen == [("loop-r0", ("loop-r2", "loop-r3"))]
    assert (held.signature, held.correction) == (("It repeats itself.",), "Try another way.")
    assert (held.version, held.support, held.updated_at) == (version + 1, 4, 9.0)
    assert cache.maintain(10.0).redistilled_ids == ()


def test_usage_makes_hot_and_missing_members_prevent_distillation() -> None:
    cache = SchemaCache(policy=CachePolicy(redistill_threshold=2))
    cache.insert(schema("loop", "r1"), 0.0)
    for at in (1.0, 2.0):
        cache.search([schema("loop", "x")], 1, at)
    before = cache.get("loop-r1")
    assert cache.maintain(3.0).redistilled_ids == ()
    assert cache.get("loop-r1") == before


def test_schema_changed_during_distillation_is_kept() -> None:
    def renew(held: ErrorSchema, members: object) -> ErrorSchema:
        del members
        cache.insert(schema("loop", "r9"), 5.0)
        return replace(held, signature=("Something old.",))

    cache = SchemaCache(policy=CachePolicy(redistill_threshold=1), redistill=renew)
    cache.insert(schema("loop", "r1"), 0.0)
    cache.insert(schema("loop", "r2"), 1.0)
    assert cache.maintain(6.0).redistilled_ids == ()
    assert cache.get("loop-r1").support == 3
    assert cache.get("loop-r1").signature == KINDS["loop"]


def test_embedded_distillation_keeps_the_shared_content() -> None:
    assert redistill_from_members(schema(), [schema()]) is None
    made = redistill_from_members(schema(), [schema("loop", "r1"), schema("loop", "r2")])
    assert made is not None
    assert made.signature == KINDS["loop"]


def test_number_of_schemata_is_bounded() -> None:
    cache = SchemaCache(policy=CachePolicy(novelty_threshold=0.0, max_schemata=10, retention_ratio=0.8))
    for number in range(60):
        made = replace(schema("loop", f"r{number}"), signature=(f"kind {number} of trouble {number * 7}",))
        cache.insert(made, float(number))
        assert len(cache) <= 10
        assert len(list(cache)) <= 20
    assert len(cache) >= 8


def test_unknown_ids_are_rejected() -> None:
    cache = SchemaCache()
    for call in (cache.record_confirmation, cache.record_refutation):
        with pytest.raises(InputError, match="no schema has the id 'x'"):
            call("x", 1.0)


def test_cache_persists_across_processes(tmp_path: Path) -> None:
    keep = FileSchemaStore(tmp_path / "s.jsonl")
    with SchemaCache(keep) as cache:
        cache.insert(schema("loop", "r1"), 1.0)
        cache.insert(schema("loop", "r2"), 2.0)
        cache.record_confirmation("loop-r1", 3.0)
    again = SchemaCache(FileSchemaStore(tmp_path / "s.jsonl"))
    assert list(again) == list(cache)
    assert again.insert(schema("loop", "r2"), 4.0).outcome == "known"


def test_failed_save_is_retried_with_the_next_one(tmp_path: Path) -> None:
    class Full(FileSchemaStore):
        full = True

        def upsert(self, schemata: object) -> None:
            if self.full:
                raise OSError("no space")
            super().upsert(schemata)  # type: ignore[arg-type]

    keep = Full(tmp_path / "s.jsonl")
    cache = SchemaCache(keep)
    cache.insert(schema("loop", "r1"), 1.0)
    with pytest.raises(OSError, match="no space"):
        cache.save()
    keep.full = False
    cache.save()
    assert [one.id for one in keep.load()] == ["loop-r1"]


def test_concurrent_updates_lose_no_count() -> None:
    cache = SchemaCache()
    cache.insert(schema("loop", "r0"), 0.0)

    def work(number: int) -> None:
        for turn in range(10):
            cache.insert(schema("loop", f"t{number}-{turn}"), 1.0)
            cache.search([schema("loop", "x")], 1, 1.0)
            cache.record_confirmation("loop-r0", 1.0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = cache.get("loop-r0")
    assert (held.support, held.used, held.confirmed) == (41, 40, 40)


class Machine(RuleBasedStateMachine):
    """State machine: any calls in any order, on two caches in parallel."""

    def __init__(self) -> None:
        super().__init__()
        rules = CachePolicy(max_schemata=3, redistill_threshold=3, max_members=2, stale_after_s=50.0)
        self.caches = (SchemaCache(policy=rules), SchemaCache(policy=rules))
        self.now = 0.0
        self.versions: dict[str, int] = {}
        self.runs: set[str] = set()

    @rule(
        kind=st.sampled_from(sorted(KINDS)),
        run=st.integers(0, 12),
        code=st.sampled_from(["", "mast:a", "mast:b"]),
        origin=st.sampled_from(SchemaOrigin),
    )
    def observe(self, kind: str, run: int, code: str, origin: SchemaOrigin) -> None:
        name = f"{run}{code}{origin}"
        made = schema(kind, name, codes=(code,) if code else (), origin=origin)
        one, other = (cache.insert(made, self.now) for cache in self.caches)
        assert one == other
        assert name in self.caches[0].get(one.schema_id).provenance.runs
        assert self.caches[0].get(one.schema_id).provenance.origin is origin

    @rule(kind=st.sampled_from(sorted(KINDS)), k=st.integers(1, 4))
    def search(self, kind: str, k: int) -> None:
        for cache in self.caches:
            found = cache.search([schema(kind, "x")], k, self.now)[0]
            assert all(match.schema.status is SchemaStatus.ACTIVE for match in found)
            assert len(found) == min(k, len(cache))

    @rule(place=st.integers(0, 20), right=st.booleans())
    def verdict(self, place: int, right: bool) -> None:
        ids = [one.id for one in self.caches[0]]
        if ids:
            for cache in self.caches:
                (cache.record_confirmation if right else cache.record_refutation)(
                    ids[place % len(ids)], self.now
                )

    @rule()
    def tend(self) -> None:
        one, other = (cache.maintain(self.now) for cache in self.caches)
        assert one == other
        assert not set(one.refuted_ids) & set(one.stale_ids)

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
        assert len(held) <= 7  # three active, three retired, and one recently used
        assert len({one.id for one in held}) == len(held)
        for one in held:
            assert one.support >= 1
            assert one.version >= self.versions.get(one.id, 1) or one.version == 1
            assert not (one.status is SchemaStatus.ACTIVE and cache.policy.is_refuted(one))
            assert one.updated_at >= one.created_at
        self.versions = {one.id: one.version for one in held}


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)


def test_schema_of_one_run_is_quarantined_until_confirmed() -> None:
    cache = SchemaCache()
    learnt = replace(schema("loop", "r1", origin=SchemaOrigin.RECOVERED), confirmed=1)
    cache.insert(learnt, 1.0, recovered=True)
    assert cache.get("loop-r1").status is SchemaStatus.QUARANTINED
    assert cache.search([learnt], 1, 2.0) == ((),)
    again = replace(schema("loop", "r2", origin=SchemaOrigin.RECOVERED), confirmed=1)
    assert cache.insert(again, 3.0, recovered=True).outcome == "merged"
    held = cache.get("loop-r1")
    assert (held.status, held.confirmed, held.support) == (SchemaStatus.ACTIVE, 2, 2)
    assert len(cache) == 1


def test_unconfirmed_schema_is_evicted_as_others() -> None:
    cache = SchemaCache(policy=CachePolicy(max_schemata=1))
    for i, kind in enumerate(("loop", "made_up", "ignored")):
        learnt = replace(schema(kind, kind, origin=SchemaOrigin.RECOVERED), confirmed=1)
        cache.insert(learnt, float(i), recovered=True)
    assert sum(1 for _ in cache) <= 2
    cache.maintain(1e9)
    assert all(one.status is SchemaStatus.RETIRED for one in cache)


def test_confirmation_by_a_person_ends_quarantine() -> None:
    cache = SchemaCache()
    cache.insert(replace(schema("loop", "r1"), confirmed=1), 1.0, recovered=True)
    assert cache.record_confirmation("loop-r1", 2.0).status is SchemaStatus.ACTIVE


def test_every_change_advances_the_update_time() -> None:
    cache = SchemaCache()
    cache.insert(schema("loop", "r1"), 5.0)
    times = [cache.record_confirmation("loop-r1", 1.0).updated_at for _ in range(3)]
    assert sorted(set(times)) == times
    assert times[0] > 5.0
