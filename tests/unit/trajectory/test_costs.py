"""Costs of runs from records and from a price table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.config.policy import Policy
from agentguard.config.prices import TokenPrice, find_price
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.trajectory.costs import compute_run_cost, price_run
from agentguard.trajectory.model import Branch, Source, Step, Trajectory, Usage

PRICES = {
    "gpt-4o-mini*": TokenPrice(input=1.0, cached_input=0.5, output=4.0),
    "gpt-*": TokenPrice(input=10.0, output=40.0),
}
MILLION = 1_000_000
COUNTS = st.integers(0, 10**9)


def build_step(index: int, model: str | None, **usage: Any) -> Step:
    return Step(
        index=index, source=Source.AGENT, agent="a", model=model, usage=Usage(**usage) if usage else None
    )


def build_run(*steps: Step, branches: tuple[Branch, ...] = ()) -> Trajectory:
    return Trajectory(id="r", format="event_log", task="t", steps=steps, branches=branches)


@pytest.mark.parametrize(
    ("model", "usage", "cost"),
    [
        ("gpt-4o-mini-2024", {"prompt_tokens": MILLION, "completion_tokens": MILLION}, 5.0),
        ("gpt-4o-mini", {"prompt_tokens": MILLION, "cached_tokens": MILLION}, 0.5),
        ("gpt-4", {"prompt_tokens": MILLION, "cached_tokens": MILLION}, 10.0),
        ("gpt-4", {"completion_tokens": 500_000}, 20.0),
        ("gpt-4", {"prompt_tokens": MILLION, "cost_usd": 0.25}, 0.25),
        ("claude", {"prompt_tokens": MILLION}, None),
        (None, {"prompt_tokens": MILLION}, None),
    ],
)
def test_cost_of_step_is_the_recorded_one_else_tokens_times_price(
    model: str | None, usage: dict[str, Any], cost: float | None
) -> None:
    (step,) = price_run(build_run(build_step(0, model, **usage)), PRICES).steps
    assert step.usage is not None
    assert step.usage.cost_usd == cost


def test_cost_of_run_includes_abandoned_branches_and_counts_unpriced_steps() -> None:
    abandoned = Branch(id="b", fork_step=0, steps=(build_step(0, "gpt-4", prompt_tokens=MILLION),))
    known, unknown = (
        build_step(0, "gpt-4", prompt_tokens=MILLION),
        build_step(1, "claude", prompt_tokens=5),
    )
    run = price_run(build_run(known, unknown, build_step(2, None), branches=(abandoned,)), PRICES)
    cost = compute_run_cost(run)
    assert (cost.cost_usd, cost.unpriced_steps) == (20.0, 1)


def test_cost_of_run_without_known_cost_is_unknown_and_not_zero() -> None:
    cost = compute_run_cost(build_run(build_step(0, "claude", prompt_tokens=5)))
    assert (cost.cost_usd, cost.unpriced_steps) == (None, 1)


def test_run_without_price_table_is_returned_as_it_is() -> None:
    run = build_run(build_step(0, "gpt-4", prompt_tokens=5))
    assert price_run(run, {}) is run


@given(COUNTS, COUNTS, COUNTS)
def test_cached_tokens_never_cost_more_than_uncached_ones(prompt: int, completion: int, cached: int) -> None:
    price = PRICES["gpt-4o-mini*"]
    cost = price.compute_cost(prompt, completion, cached)
    assert 0 <= cost <= price.compute_cost(prompt, completion) + 1e-9


def test_first_pattern_that_matches_applies() -> None:
    assert find_price(PRICES, "gpt-4o-mini") is PRICES["gpt-4o-mini*"]
    assert find_price(PRICES, "gpt-4o") is PRICES["gpt-*"]


def test_policy_prices_runs_for_the_budget_detector() -> None:
    policy = Policy.parse(
        {"prices": {"gpt-*": {"input": 10, "output": 40}}, "detectors": {"budget": {"cost_usd": 15.0}}}
    )
    steps = [build_step(index, "gpt-4", prompt_tokens=MILLION) for index in range(3)]
    diagnosis = Guard.from_policy(policy).diagnose(build_run(*steps))
    (finding,) = [one for one in diagnosis.findings if one.detector == "budget"]
    assert finding.step == 1
    assert not [one for one in Guard().diagnose(build_run(*steps)).findings if one.detector == "budget"]


@pytest.mark.parametrize(
    "price", [{"input": -1, "output": 1}, {"input": 1}, {"input": 1, "output": 1, "x": 2}]
)
def test_invalid_price_is_refused_with_its_field(price: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"guard\.yaml: prices\.gpt-4\."):
        Policy.parse({"prices": {"gpt-4": price}}, source="guard.yaml")
