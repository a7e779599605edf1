"""What to tell an agent that failed like this: codes, module and correction, without the topic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from agentguard.detect.base import Finding
from agentguard.errors import TaxonomyError
from agentguard.schemata.plain import GAP, Plainer
from agentguard.schemata.signs import known_codes

MODULES: Final = ("memory", "reflection", "planning", "action", "system")
_MOST_CODES: Final = 4
_LONGEST: Final = 400
_KEPT: Final = 0.6
"""Share of a correction's words that must be left for it to make sense without its topic."""

_GENERAL: Final = {
    "memory": "Rely only on what stands in the history, and say where each fact comes from.",
    "reflection": "Compare what came back with what you expected before you go on.",
    "planning": "Check the plan against the task and its constraints before you carry it out.",
    "action": "Carry out exactly what was decided, and check the call before you make it.",
    "system": "Read what the environment reports, and work within its limits.",
}
_WORD = re.compile(r"\w+")


def codes_of(codes: Sequence[str], here: Sequence[Finding]) -> tuple[str, ...]:
    """Codes of the label if it has any, else those of the findings at the step, the likeliest first."""
    known = known_codes(codes)
    if not known:
        found = sorted(here, key=lambda one: (-one.probability, one.detector))
        known = tuple(code for one in found for code in known_codes(one.codes))
    return tuple(dict.fromkeys(known))[:_MOST_CODES]


def module_of(module: str | None, codes: Iterable[str]) -> str | None:
    """The module of the label, else that of the first code whose taxonomy knows one."""
    if module in MODULES:
        return module
    return next((found for code in codes if (found := _looked_up(code)[0]) is not None), None)


def correction_of(
    given: str, here: Sequence[Finding], codes: Sequence[str], module: str | None, plainer: Plainer
) -> str:
    """The first correction that says nothing of the topic.

    In this order: what is given or a finding at the step says, if no word of it is topical; what the taxonomy
    says of the codes; what is given or found with its topic taken out, if enough is left; what helps where
    that module fails. Empty if there is none of these.
    """
    found = [one.correction for one in sorted(here, key=lambda one: (-one.probability, one.detector))]
    offered = [text[:_LONGEST] for text in (given, *found) if text.strip()]
    stripped = [(text, plainer(text)) for text in offered]
    whole = next((text for text, left in stripped if _WORD.findall(text.lower()) == _WORD.findall(left)), "")
    general = next((advice for code in codes if (advice := _looked_up(code)[1])), "")
    rest = next((_sentence(left) for text, left in stripped if _enough(text, left)), "")
    return " ".join((whole or general or rest or _GENERAL.get(module or "", "")).split())


def _looked_up(code: str) -> tuple[str | None, str]:
    """Module and correction of a code; of one that no taxonomy at hand has, nothing."""
    from agentguard.taxonomy.load import Taxonomies

    try:
        known = Taxonomies.load().code(code)
    except TaxonomyError:
        return None, ""
    return known.module, known.correction


def _enough(text: str, left: str) -> bool:
    words = _WORD.findall(text)
    return bool(words) and len(_WORD.findall(left.replace(GAP, " "))) >= _KEPT * len(words)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
