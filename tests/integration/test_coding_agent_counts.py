"""Importers of coding agents' runs against independent counts on real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import shared_data
from tests.support.format_counts import FormatCounts, coding_agents, count_imported

COUNTS: dict[str, Callable[[Path], FormatCounts]] = {
    "formats/inspect": coding_agents.count_inspect,
    "formats/mini_swe_agent": coding_agents.count_mini_swe_agent,
    "formats/openhands": coding_agents.count_openhands,
    "formats/swe_agent": coding_agents.count_swe_agent,
}


@pytest.mark.parametrize("relative", COUNTS)
def test_importer_equals_independent_count(relative: str) -> None:
    path = shared_data(relative)
    counted = COUNTS[relative](path)
    assert counted.runs > 0
    assert count_imported(path) == counted
