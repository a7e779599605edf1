from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from scipy.stats import beta

from agentguard.errors import ConfigError
from agentguard.schemata.cache_policy import (
    DAY_S,
    CachePolicy,
    are_compatible,
    compute_mean_success_rate,
    compute_mostly_wrong_probability,
)
from agentguard.schemata.model import SchemaOrigin
from tests.unit.schemata.builders import schema


@given(confirmed=st.integers(0, 60), refuted=st.integers(0, 60))
def test_refutation_probability_is_the_beta_posterior_below_half(confirmed: int, refuted: int) -> None:
    expected = float(beta.cdf(0.5, confirmed + 1, refuted + 1))
    assert compute_mostly_wrong_probability(confirmed, refuted) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("confirmed", "refuted", "expected"),
    [(0, 0, False), (0, 3, False), (0, 4, True), (1, 4, False), (5, 5, False), (3, 30, True), (30, 3, False)],
)
def test_schema_is_refuted_if_wrong_beyond_doubt(confirmed: int, refuted: int, expected: bool) -> None:
    assert CachePolicy().is_refuted(replace(schema(), confirmed=confirmed, refuted=refuted)) is expected


def test_staleness_counts_from_the_last_activity() -> None:
    rules = CachePolicy(stale_after_s=10 * DAY_S)
    old = replace(schema(), created_at=0.0, updated_at=DAY_S)
    assert not rules.is_stale(old, 11 * DAY_S)
    assert rules.is_stale(old, 11 * DAY_S + 1)
    assert not rules.is_stale(replace(old, used_at=5 * DAY_S), 12 * DAY_S)


def test_kinds_match_if_they_share_a_code_or_one_has_none() -> None:
    one, other = schema(codes=("mast:a", "mast:b")), schema(run="r2", codes=("mast:b",))
    assert are_compatible(one, other)
    assert are_compatible(one, schema(run="r2"))
    assert not are_compatible(one, schema(run="r2", codes=("mast:c",)))
    assert not are_compatible(schema(), schema(run="r2", origin=SchemaOrigin.INJECTED))


@pytest.mark.parametrize(
    "wrong",
    [
        {"novelty_threshold": -0.1},
        {"novelty_threshold": 2.1},
        {"max_schemata": 0},
        {"max_merge_candidates": 0},
        {"redistill_threshold": 0},
        {"max_members": 0},
        {"retention_ratio": 0.0},
        {"stale_after_s": 0.0},
        {"refutation_threshold": 0.4},
        {"refutation_threshold": 1.0},
    ],
)
def test_setting_out_of_range_is_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CachePolicy(**wrong)  # type: ignore[arg-type]


def test_schema_is_proven_by_runs_and_trusted_by_outcomes() -> None:
    one = schema("loop", "r1")
    assert compute_mean_success_rate(one) == 0.5
    assert not CachePolicy().is_proven(replace(one, confirmed=1))
    assert CachePolicy().is_proven(replace(one, confirmed=2))
    assert not CachePolicy().is_proven(replace(one, confirmed=2, refuted=40))
    assert compute_mean_success_rate(replace(one, confirmed=2)) == 0.75
    with pytest.raises(ConfigError, match="min_confirmations"):
        CachePolicy(min_confirmations=1)
