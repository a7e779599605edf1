"""Advice of a schema: its codes, its module, and the correction for the agent, without the topic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from agentguard.detect.base import Finding
from agentguard.errors import TaxonomyError
from agentguard.schemata.profiles.delexicalization import GAP_MARKER, Delexicalizer
from agentguard.schemata.profiles.finding_traits import filter_codes

MODULES: Final = ("memory", "reflection", "planning", "action", "system")
_MAX_CODES: Final = 4
_MAX_CORRECTION_CHARS: Final = 400
_MIN_RETAINED_SHARE: Final = 0.6
"""Minimum share of the words of a correction that must remain without the topic."""

_GENERAL_CORRECTIONS: Final = {
    "memory": "Use only facts from the history, and name the source of each fact.",
    "reflection": "Compare the result with the expected result before you continue.",
    "planning": "Check the plan against the task and its constraints before you execute it.",
    "action": "Execute exactly the action that you decided on, and check the call before you make it.",
    "system": "Read the messages of the environment, and stay within its limits.",
}
_WORD_PATTERN = re.compile(r"\w+")


def select_codes(codes: Sequence[str], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the codes of the label, else those of the findings at the step, the most probable first.

    At most four codes are returned.
    """
    label_codes = filter_codes(codes)
    if not label_codes:
        ranked_findings = sorted(findings, key=lambda one: (-one.probability, one.detector))
        label_codes = tuple(code for one in ranked_findings for code in filter_codes(one.codes))
    return tuple(dict.fromkeys(label_codes))[:_MAX_CODES]


def resolve_module(module: str | None, codes: Iterable[str]) -> str | None:
    """Return the module of the label, else that of the first code whose taxonomy has one."""
    if module in MODULES:
        return module
    return next((code_module for code in codes if (code_module := _look_up_code(code)[0]) is not None), None)


def select_correction(
    labelled: str,
    findings: Sequence[Finding],
    codes: Sequence[str],
    module: str | None,
    delexicalizer: Delexicalizer,
) -> str:
    """Return the first correction without the topic of the task; empty if there is no such correction.

    The candidates, in order:

    1. the correction of the label or of a finding at the step, if it has no word of the topic
    2. the correction of the codes in their taxonomy
    3. the correction of the label or of a finding, with the topic removed, if enough of it remains
    4. the general correction of the module

    Args:
        labelled: correction of the label; may be empty.
        findings: findings at the step.
        codes: qualified codes of the failure.
        module: module of the failure, if known.
        delexicalizer: delexicaliser of the run.
    """
    corrections = [
        one.correction for one in sorted(findings, key=lambda one: (-one.probability, one.detector))
    ]
    candidates = [text[:_MAX_CORRECTION_CHARS] for text in (labelled, *corrections) if text.strip()]
    stripped = [(text, delexicalizer(text)) for text in candidates]
    unchanged = next(
        (
            text
            for text, plain in stripped
            if _WORD_PATTERN.findall(text.lower()) == _WORD_PATTERN.findall(plain)
        ),
        "",
    )
    advice_text = next((advice for code in codes if (advice := _look_up_code(code)[1])), "")
    remainder = next(
        (_format_sentence(plain) for text, plain in stripped if _is_informative(text, plain)), ""
    )
    return " ".join(
        (unchanged or advice_text or remainder or _GENERAL_CORRECTIONS.get(module or "", "")).split()
    )


def _look_up_code(code: str) -> tuple[str | None, str]:
    """Return module and correction of a code; (None, "") if no taxonomy has the code."""
    from agentguard.taxonomy.catalog import TaxonomyCatalog

    try:
        entry = TaxonomyCatalog.load().get_code(code)
    except TaxonomyError:
        return None, ""
    return entry.module, entry.correction


def _is_informative(text: str, remaining: str) -> bool:
    words = _WORD_PATTERN.findall(text)
    return bool(words) and len(
        _WORD_PATTERN.findall(remaining.replace(GAP_MARKER, " "))
    ) >= _MIN_RETAINED_SHARE * len(words)


def _format_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
