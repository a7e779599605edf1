"""Importers against independent counts on real files; see tests/support/format_counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import shared_data
from tests.support.format_counts import (
    FormatCounts,
    agent_libraries,
    coding_agents,
    count_imported,
    development_sets,
    iter_lines,
    langfuse,
    langsmith,
    sdk_messages,
)

_LANGSMITH_PYTHON = "formats/langsmith/tests_integration_tests_test_data_langsmith_py_wrap_openai_.json"
COUNTS: dict[str, Callable[[Path], FormatCounts]] = {
    "formats/claude_code_2": coding_agents.count_claude_code,
    "formats/langfuse": langfuse.count_traces,
    "formats/langsmith/src_tests_test_data_langsmith_js_wrap_openai_stream.json": langsmith.count_batch,
    _LANGSMITH_PYTHON: langsmith.count_batch,
    "formats/openai_agents": sdk_messages.count_run_states,
    **{
        f"formats/vercel_ai/anthropic_src___fixtures___anthropic-{name}.json": (
            sdk_messages.count_anthropic_response
        )
        for name in ("code-execution-20250825.pptx-skill", "web-fetch-tool.error", "web-search-tool.1")
    },
    "intercode": development_sets.count_intercode,
    "knowagent_alfworld": development_sets.count_alfworld,
    "livemcpbench": development_sets.count_livemcpbench,
    "stepshield": development_sets.count_stepshield,
    "tau_bench": development_sets.count_tau_bench,
    "terminal_bench_atif": development_sets.count_atif_trials,
    "terminal_bench_claude_code": development_sets.count_claude_code,
}

SAMPLES = Path(__file__).parents[1] / "contract" / "samples"
SAMPLE_COUNTS: dict[str, Callable[[Path], FormatCounts]] = {
    "agentdojo.errors.json": agent_libraries.count_agentdojo,
    "browser_use.judged.json": agent_libraries.count_browser_use,
    "crewai.kickoffs.json": agent_libraries.count_crewai,
    "crewai.kickoffs.txt": agent_libraries.count_crewai_text,
    "openai_agents.approval.json": agent_libraries.count_agents_state,
    "otel_spans.agents_sdk.jsonl": agent_libraries.count_agents_trace,
    "smolagents.code.json": agent_libraries.count_smolagents,
    "smolagents.tools.json": agent_libraries.count_smolagents,
    "tau2_bench.json": agent_libraries.count_tau2_bench,
    "tau2_bench.raw.json": agent_libraries.count_tau2_bench,
}
"""Samples that the library of the format wrote, and two in the shape of tau2-bench's data model."""


@pytest.mark.parametrize("relative", COUNTS)
def test_importer_equals_independent_count(relative: str) -> None:
    path = shared_data(relative)
    counted = COUNTS[relative](path)
    assert counted.runs > 0
    assert count_imported(path) == counted


@pytest.mark.parametrize("name", SAMPLE_COUNTS)
def test_importer_of_a_library_equals_independent_count(name: str) -> None:
    counted = SAMPLE_COUNTS[name](SAMPLES / name)
    assert counted.turns > 1
    assert count_imported(SAMPLES / name) == counted


def test_importer_of_a_harbor_job_equals_independent_count(tmp_path: Path) -> None:
    data_set = shared_data("terminal_bench_atif")
    for run in iter_lines(data_set / "runs.jsonl.gz"):
        trial = tmp_path / "job" / run["trial"]
        for folder in ("agent", "verifier"):
            (trial / folder).mkdir(parents=True)
        (trial / "result.json").write_text(json.dumps({"trial_name": run["trial"]}))
        (trial / "agent" / "trajectory.json").write_text(json.dumps(run["trajectory"]))
        (trial / "verifier" / "reward.txt").write_text(str(run["reward"]))
    assert count_imported(tmp_path / "job") == development_sets.count_atif_trials(data_set)
