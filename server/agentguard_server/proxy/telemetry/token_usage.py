"""Extraction of the token usage from a response without parsing the whole body.

Every API puts a ``usage`` object at the end of its response or into one of the last events of its stream.
Anthropic's stream has the input tokens in its first event. The scan therefore covers only both ends. Model
output cannot match: inside a JSON string each quotation mark follows a backslash.
"""

from __future__ import annotations

import re
from typing import Final

_SCAN_BYTES: Final = 4096
_USAGE_FIELD: Final = re.compile(rb'(?<!\\)"usage"\s*:\s*\{')
_COMMON_USAGE: Final = re.compile(
    rb'"usage":\s?\{"prompt_tokens":\s?(\d{1,12}),\s?(?:"total_tokens":\s?\d{1,12},\s?)?'
    rb'"completion_tokens":\s?(\d{1,12})(?!\d)'
)
"""Usage in the order of OpenAI and vLLM; a fast path for most responses."""
_INPUT_TOKENS: Final = re.compile(rb'(?<!\\)"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})(?!\d)')
_OUTPUT_TOKENS: Final = re.compile(rb'(?<!\\)"(?:completion|output)_tokens"\s*:\s*(\d{1,12})(?!\d)')


def extract_token_usage(response_body: bytes) -> tuple[int, int]:
    """Return the input and output tokens of a response or of a stream's events; 0 if unknown."""
    at = _find_last_usage(response_body)
    if at >= 0:
        usual = _COMMON_USAGE.match(response_body, at)
        if usual:
            return int(usual[1]), int(usual[2])
        given, made = (
            _extract_number(_INPUT_TOKENS, response_body, at),
            _extract_number(_OUTPUT_TOKENS, response_body, at),
        )
        if given:
            return given, made
    else:
        made = 0
    head = response_body[:_SCAN_BYTES]
    first = _USAGE_FIELD.search(head)
    return (_extract_number(_INPUT_TOKENS, head, first.start()) if first else 0), made


def _find_last_usage(response_body: bytes) -> int:
    """Return the offset of the last usage object; -1 if the end of the response has none."""
    end = len(response_body)
    least = max(0, end - _SCAN_BYTES)
    while (end := response_body.rfind(b'"usage"', least, end)) >= 0:
        if _USAGE_FIELD.match(response_body, end):
            return end
    return -1


def _extract_number(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    found = pattern.search(data, start, start + _SCAN_BYTES)
    return int(found[1]) if found else 0
