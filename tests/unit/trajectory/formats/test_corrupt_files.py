"""Mutated samples are read or rejected with a FormatError; no other exception occurs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agentguard.errors import InputError
from agentguard.trajectory.formats.base import UnreadableRecord, formats
from tests.unit.trajectory.formats.samples import lines, sample, spoilt

CASES = {
    "agent_error_bench": sample("agent_error_bench.json"),
    "agent_process_bench": lines("agent_process_bench.jsonl")[0],
    "agentdojo": sample("agentdojo.json"),
    "agentrx": sample("agentrx.json"),
    "alfworld": lines("alfworld.jsonl")[0],
    "inspect_log": sample("inspect_log.json"),
    "intercode": sample("intercode.json"),
    "langchain": sample("langchain.history.json"),
    "langfuse": sample("langfuse.json"),
    "langsmith": {"runs": lines("langsmith.jsonl")},
    "mast": sample("mast.people.json"),
    "openhands": lines("openhands.jsonl")[1],
    "otel_spans": sample("otel_spans.json"),
    "otlp_json": sample("otlp_json.json"),
    "stepshield": lines("stepshield.jsonl")[0],
    "swe_agent": sample("swe_agent.traj"),
    "tau2_bench": sample("tau2_bench.json"),
    "terminal_bench": lines("terminal_bench.jsonl")[0],
    "text_actions": sample("text_actions.json"),
    "trail": sample("trail.json"),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_mutated_samples_are_read_or_rejected(name: str) -> None:
    format = formats().get(name)
    outcomes: dict[str, int] = {"read": 0, "refused": 0}
    for value in spoilt(CASES[name], count=600):
        assert 0.0 <= format.score_match(value) <= 1.0
        try:
            for record in format.parse(value, name="name"):
                if isinstance(record, UnreadableRecord):
                    raise record.error
                assert [step.index for step in record.trajectory.steps] == list(
                    range(len(record.trajectory.steps))
                )
                assert orjson.dumps(record.trajectory, option=orjson.OPT_NON_STR_KEYS)
                assert orjson.dumps(record.annotation, option=orjson.OPT_NON_STR_KEYS)
            outcomes["read"] += 1
        except InputError as error:
            assert error.reason
            outcomes["refused"] += 1
    # A reader that rejects everything or accepts everything is useless.
    assert min(outcomes.values()) > 20, outcomes


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize(
    "value", [None, 1, "", "x", [], [1], {}, {"messages": 1}, {"trace": {}}, {"traj": [1]}]
)
def test_foreign_data_is_not_claimed(name: str, value: Any) -> None:
    limit = 0.05 if name == "mast" and isinstance(value, str) else 0.0
    assert formats().get(name).score_match(value) <= limit


@pytest.mark.parametrize("name", sorted(CASES))
def test_format_claims_only_its_own_sample(name: str) -> None:
    value = CASES[name]
    scores = {other: formats().get(other).score_match(value) for other in formats()}
    assert max(scores, key=lambda other: scores[other]) == name
    assert sorted(scores.values())[-2] < scores[name]
