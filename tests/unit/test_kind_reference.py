"""The reference of the kinds of failure is complete and up to date."""

from __future__ import annotations

from importlib import import_module

from agentguard.detect.base import Detector
from agentguard.detect.rules import BUILTIN_DETECTORS
from agentguard.localize.explanation import EXPLANATION_RULES
from tools.write_kind_reference import PAGE, build_page


def load_detector(path: str) -> Detector:
    module, _, name = path.partition(":")
    detector: Detector = getattr(import_module(module), name)()
    return detector


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(), "run python tools/write_kind_reference.py"


def test_page_has_every_code_of_detectors_and_explanations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    codes = {code for path in BUILTIN_DETECTORS.values() for code in load_detector(path).codes}
    codes |= {code for rule in EXPLANATION_RULES for code in rule.codes}
    assert codes
    assert [code for code in sorted(codes) if f"`{code}`" not in page] == []
