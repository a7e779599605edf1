"""Costs of runs: recorded costs, and costs from a price table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentguard.config.prices import PriceTable, find_price
from agentguard.trajectory.model import Step, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Cost of a run over all branches.

    Attributes:
        cost_usd: sum of the known costs in US dollars; None if no cost is known.
        unpriced_steps: steps with tokens and without a cost; the sum does not include them.
    """

    cost_usd: float | None
    unpriced_steps: int


def price_step(step: Step, prices: PriceTable) -> Step:
    """Return the step with its cost; unchanged if its cost is recorded or its model has no price."""
    usage = step.usage
    if not prices or usage is None or usage.cost_usd is not None:
        return step
    price = find_price(prices, step.model)
    if price is None or (usage.prompt_tokens is None and usage.completion_tokens is None):
        return step
    cost = price.compute_cost(
        usage.prompt_tokens or 0, usage.completion_tokens or 0, usage.cached_tokens or 0
    )
    return step.with_usage(replace(usage, cost_usd=cost), step.model)


def price_run(run: Trajectory, prices: PriceTable) -> Trajectory:
    """Return the run with the costs of its steps on all branches; see `price_step`."""
    if not prices:
        return run
    return replace(
        run,
        steps=tuple(price_step(step, prices) for step in run.steps),
        branches=tuple(
            replace(branch, steps=tuple(price_step(step, prices) for step in branch.steps))
            for branch in run.branches
        ),
    )


def compute_run_cost(run: Trajectory) -> RunCost:
    """Return the cost of a run, including its abandoned branches, whose steps had a cost, too."""
    costs: list[float] = []
    unpriced = 0
    for step in _iter_steps(run):
        if step.usage is not None and step.usage.cost_usd is not None:
            costs.append(step.usage.cost_usd)
        elif step.usage is not None and (step.usage.prompt_tokens or step.usage.completion_tokens):
            unpriced += 1
    return RunCost(cost_usd=sum(costs) if costs else None, unpriced_steps=unpriced)


def _iter_steps(run: Trajectory) -> Iterator[Step]:
    yield from run.steps
    for branch in run.branches:
        yield from branch.steps
