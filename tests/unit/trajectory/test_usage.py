"""Usage objects in the spellings of APIs and tracing products."""

from __future__ import annotations

import pytest

from agentguard.trajectory.model import Usage
from agentguard.trajectory.usage import parse_usage


@pytest.mark.parametrize(
    "name", ["cost_usd", "response_cost", "totalCost", "calculated_total_cost", "calculatedTotalCost"]
)
def test_cost_in_each_spelling_is_read(name: str) -> None:
    assert parse_usage({name: 0.25}) == Usage(cost_usd=0.25)
