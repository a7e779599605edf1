"""Round trip of a diagnosis through JSON, and errors that name malformed parts."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import agentguard
from agentguard.errors import FormatError
from agentguard.localize.serialization import decode_diagnosis, encode_diagnosis
from agentguard.trajectory.json_node import JsonNode

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.json"))


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_diagnosis_round_trips(file: Path) -> None:
    diagnosis = agentguard.diagnose(agentguard.load_trajectory(file))
    data = orjson.loads(orjson.dumps(encode_diagnosis(diagnosis)))
    assert decode_diagnosis(JsonNode.from_value(data)) == diagnosis


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"verdict": "perhaps"}, "verdict"),
        ({"probability": "high"}, "probability"),
        ({"notes": ["fine", 3]}, "notes[1]"),
        ({"hypotheses": [{"step": 0}]}, "hypotheses[0].agent"),
        ({"findings": [{"detector": "x", "step": 0, "codes": [1]}]}, "findings[0].codes[0]"),
    ],
)
def test_malformed_diagnosis_is_rejected(change: dict[str, object], field: str) -> None:
    data = encode_diagnosis(agentguard.diagnose(agentguard.load_trajectory(SAMPLES[0])))
    with pytest.raises(FormatError) as caught:
        decode_diagnosis(JsonNode.from_value(data | change))
    assert caught.value.field == field
