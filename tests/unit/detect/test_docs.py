"""docs/detectors.md matches the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from agentguard.config.policy import Policy
from agentguard.detect.base import BaseDetector, detectors
from agentguard.detect.runner import build_detectors

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "detectors.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip("`"): [cell.strip() for cell in cells[1:]]
    for line in PAGE.splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}
OWN = [n for n in detectors().names() if issubclass(detectors().get(n), BaseDetector)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OWN)
def test_detector_is_documented_with_all_its_codes(name: str) -> None:
    rule = type(build_detectors({name: {}})[0])
    assert issubclass(rule, BaseDetector)
    sees, codes = ROWS[name][:2]
    assert sees == rule.summary
    assert re.findall(r"`([^`]+)`", codes) == list(rule.codes)


@pytest.mark.parametrize("name", OWN)
def test_every_option_is_documented_with_default_and_range(name: str) -> None:
    (detector,) = build_detectors({name: {}})
    assert isinstance(detector, BaseDetector)
    for option in fields(detector.options):
        default, limits, meaning = ROWS[f"{name}.{option.name}"]
        shown = yaml.safe_load(default.strip("`"))
        value = getattr(detector.default_options, option.name)
        assert shown == (list(value) if isinstance(value, tuple) else value)
        if option.metadata["bounds"] is not None:
            low, high = (float(n.replace(",", "")) for n in re.findall(r"\d[\d,.]*(?:e\+?\d+)?", limits))
            assert (low, high) == option.metadata["bounds"]
        assert meaning == option.metadata["description"]


def test_every_documented_item_exists() -> None:
    for name in ROWS:
        rule, _, option = name.partition(".")
        if option:
            (detector,) = build_detectors({rule: {}})
            assert option in {field.name for field in fields(detector.options)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_example_is_a_valid_policy(text: str) -> None:
    policy = Policy.parse(yaml.safe_load(text))
    assert build_detectors(policy.detectors)
