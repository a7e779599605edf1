"""How many tokens an answer says it took, found without reading all of it.

Every API puts a ``usage`` object at the end of its answer or into one of the last events of its stream;
Anthropic's stream tells of the input in its first event. So only both ends are looked at. Text of a model
cannot pass for it: inside a JSON string each quotation mark has a backslash before it.
"""

from __future__ import annotations

import re
from typing import Final

_LOOK: Final = 4096
_USAGE: Final = re.compile(rb'(?<!\\)"usage"\s*:\s*\{')
_USUAL: Final = re.compile(
    rb'"usage":\s?\{"prompt_tokens":\s?(\d{1,12}),\s?(?:"total_tokens":\s?\d{1,12},\s?)?'
    rb'"completion_tokens":\s?(\d{1,12})(?!\d)'
)
"""As OpenAI and vLLM write it: most answers are read in one step."""
_INPUT: Final = re.compile(rb'(?<!\\)"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})(?!\d)')
_OUTPUT: Final = re.compile(rb'(?<!\\)"(?:completion|output)_tokens"\s*:\s*(\d{1,12})(?!\d)')


def tokens_of(answer: bytes) -> tuple[int, int]:
    """Input and output tokens of an answer or of a stream's events; 0 where it does not say."""
    at = _last_usage(answer)
    if at >= 0:
        usual = _USUAL.match(answer, at)
        if usual:
            return int(usual[1]), int(usual[2])
        given, made = _number(_INPUT, answer, at), _number(_OUTPUT, answer, at)
        if given:
            return given, made
    else:
        made = 0
    head = answer[:_LOOK]
    first = _USAGE.search(head)
    return (_number(_INPUT, head, first.start()) if first else 0), made


def _last_usage(answer: bytes) -> int:
    """Where the last usage object begins; -1 if there is none near the end."""
    end = len(answer)
    least = max(0, end - _LOOK)
    while (end := answer.rfind(b'"usage"', least, end)) >= 0:
        if _USAGE.match(answer, end):
            return end
    return -1


def _number(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    found = pattern.search(data, start, start + _LOOK)
    return int(found[1]) if found else 0
