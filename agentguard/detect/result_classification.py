"""Classification of tool results: ok, error, empty, unusable or partial, with the reason and the quoted span.

A recorded error flag takes precedence over the text. Patterns are matched at the head and the tail of a text,
where tools print errors; the middle of a long document may mention errors as its subject.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from agentguard.detect.error_patterns import find_document_start, match_error_text
from agentguard.detect.result_patterns import match_empty, match_partial, match_unusable, skip_label
from agentguard.detect.result_status import (
    ResultClassification,
    ResultReason,
    ResultStatus,
    build_error,
    find_line_end,
)

USABLE = ResultClassification(status=ResultStatus.OK)
"""Classification of a usable result."""

_MAX_FLAGGED_CHARS = 400
_MAX_CACHED_CHARS = 4_000


def classify_result(lower_text: str, *, flag: bool | None = None) -> ResultClassification:
    """Classify a lower-case result; ``flag`` is the recorded error flag, or None.

    A false flag excludes the status error, but not empty, unusable or partial. The cost is bounded: the
    function reads head and tail, parses JSON of at most 20,000 code points and searches a few substrings.
    """
    classify = _classify_short_text if len(lower_text) <= _MAX_CACHED_CHARS else _classify_text
    classification = classify(lower_text, may_be_error=flag is not False)
    if flag and classification.status is not ResultStatus.ERROR:
        return ResultClassification(
            status=ResultStatus.ERROR,
            reason=ResultReason.FLAGGED,
            end=min(len(lower_text), _MAX_FLAGGED_CHARS),
        )
    return classification


def _classify_text(lower_text: str, *, may_be_error: bool) -> ResultClassification:
    start = skip_label(lower_text)
    empty = match_empty(lower_text, start)
    if empty is not None:
        return empty
    classification = None
    if _is_structured(lower_text, start):
        classification = classify_json(lower_text, start)
    elif may_be_error:
        classification = match_error_text(lower_text, start, find_document_start(lower_text, start))
    if classification is not None and (may_be_error or classification.status is not ResultStatus.ERROR):
        return classification
    return match_unusable(lower_text, start) or match_partial(lower_text) or USABLE


# Detectors, judge and localizer classify the same results of a run in turn.
_classify_short_text = lru_cache(maxsize=512)(_classify_text)


def _is_structured(lower_text: str, start: int) -> bool:
    """Return True for JSON and for Python literals; "[error] ..." is a log line."""
    opening = lower_text[start : start + 2]
    return opening[:1] == "{" or (opening[:1] == "[" and not opening[1:].isalpha())


__all__ = ["USABLE", "ResultClassification", "ResultReason", "ResultStatus", "classify_result"]


_MAX_JSON_CHARS = 20_000
_MAX_REPR_CHARS = 200
_EDGE_CHARS = 300
_MAX_DEPTH = 3
_MAX_ITEMS = 50
_ERROR_KEYS = frozenset({"error", "errors", "exception", "error_message", "errormessage", "error_code"})
_SUCCESS_KEYS = frozenset({"success", "ok", "succeeded"})
_FLAG_KEYS = frozenset({"is_error", "iserror", "failed"})
_EXIT_KEYS = frozenset({"exit_code", "exitcode", "returncode", "return_code", "exit_status"})
_CONTENT_KEYS = frozenset({
    "output", "result", "results", "response", "data", "content", "metadata", "body", "message", "text",
    "items", "matches", "hits", "records", "rows", "entries", "documents", "stdout", "stderr", "detail",
    "observation", "meta", "info",
})  # fmt: skip
_LIST_KEYS = _CONTENT_KEYS - {"metadata", "message", "stderr", "detail", "stdout", "meta", "info"}
_FAILED_STATUSES = frozenset({"error", "failed", "failure"})
_NO_ERROR_VALUES = frozenset({"", "none", "null", "no error", "false", "0", "ok"})
_REPR_PATTERN = re.compile(
    r"[\"'](?:error|errors|exception|error_message)[\"']\s*:\s*(?![\s]|null\b|none\b|false\b|0\b|\"\"|''|\[\]|\{\})"
    r"|[\"'](?:success|ok)[\"']\s*:\s*false\b"
    r"|[\"'](?:\w{1,20}_)?status[\"']\s*:\s*[\"'](?:error|failed|failure)[\"']"
    r"|[\"'](?:exit_?code|return_?code)[\"']\s*:\s*(?:-\d|[1-9])"
    r"|[\"']is_?error[\"']\s*:\s*true\b"
)
_CUES = ("err", "exception", "fail", "false", "status", "exit", "returncode", "[]", "{}", "denied",
         "not found", "javascript", "%pdf", "browser", "moment...")  # fmt: skip


def classify_json(lower_text: str, start: int) -> ResultClassification | None:
    """Classify the JSON value or Python literal at ``start`` of a lower-case text; None if it is usable.

    Error members count anywhere in JSON of at most 20,000 code points, in other texts only at the beginning.
    """
    if not _has_cue(lower_text):
        return None
    if len(lower_text) - start <= _MAX_JSON_CHARS:
        try:
            value = orjson.loads(lower_text[start:])
        except orjson.JSONDecodeError:
            pass
        else:
            return _classify_value(value, lower_text, start, 0)
    match = _REPR_PATTERN.search(lower_text, start, start + _MAX_REPR_CHARS)
    if match and lower_text[start] == "{":
        return build_error(ResultReason.ERROR_OBJECT, match.start(), find_line_end(lower_text, match.end()))
    return None


def _has_cue(lower_text: str) -> bool:
    """Return True if the value may have another status than ok, judged by substrings of head and tail."""
    if len(lower_text) <= 2 * _EDGE_CHARS:
        edges = lower_text
    else:
        edges = f"{lower_text[:_EDGE_CHARS]}\n{lower_text[-_EDGE_CHARS:]}"
    return any(cue in edges for cue in _CUES) or '"error"' in lower_text


def _classify_value(value: Any, text: str, start: int, depth: int) -> ResultClassification | None:
    if isinstance(value, Mapping):
        return _classify_object(value, text, start, depth)
    if isinstance(value, list):
        return _classify_list(value, text, start, depth)
    return _classify_nested_text(value, text, start) if isinstance(value, str) else None


def _classify_object(
    value: Mapping[str, Any], text: str, start: int, depth: int
) -> ResultClassification | None:
    for key, item in value.items():
        reason = _find_error_reason(key, item, value)
        if reason is not None:
            return _quote_member(ResultStatus.ERROR, reason, text, start, key)
    if depth >= _MAX_DEPTH:
        return None
    lists = [item for key, item in value.items() if key in _LIST_KEYS and isinstance(item, (list, Mapping))]
    if lists and not any(lists):
        key = next(
            key for key, item in value.items() if key in _LIST_KEYS and isinstance(item, (list, Mapping))
        )
        return _quote_member(ResultStatus.EMPTY, ResultReason.NO_MATCH, text, start, key)
    for key, item in value.items():
        if key in _CONTENT_KEYS and item and isinstance(item, (str, list, Mapping)):
            position = max(start, text.find(f'"{key}"', start))
            nested = _classify_value(item, text, position, depth + 1)
            if nested is not None and nested.status is not ResultStatus.EMPTY:
                return nested
    return None


def _classify_list(value: list[Any], text: str, start: int, depth: int) -> ResultClassification | None:
    if depth >= _MAX_DEPTH:
        return None
    found = [_classify_value(item, text, start, depth + 1) for item in value[:_MAX_ITEMS]]
    errors = [one for one in found if one is not None and one.is_error]
    if not errors:
        return found[0] if len(found) == 1 else None
    if len(errors) == len(found):
        return errors[0]
    return ResultClassification(
        status=ResultStatus.PARTIAL,
        reason=ResultReason.SOME_ERRORS,
        start=errors[0].start,
        end=errors[0].end,
    )


def _classify_nested_text(value: str, text: str, start: int) -> ResultClassification | None:
    """Classify a text inside JSON; the span is the start of the text in the result."""
    nested = (
        match_empty(value, 0) or match_error_text(value, 0, len(value)) or match_unusable(value, 0)
        if value.strip()
        else None
    )
    if nested is None or nested.reason is None:
        return None
    opening = value[:40].partition("\n")[0]
    position = text.find(opening, start)
    begin = position if position >= 0 else start
    return ResultClassification(
        status=nested.status, reason=nested.reason, start=begin, end=find_line_end(text, begin + 1)
    )


def _find_error_reason(key: str, item: Any, value: Mapping[str, Any]) -> ResultReason | None:
    if key in _ERROR_KEYS:
        is_set = item.strip() not in _NO_ERROR_VALUES if isinstance(item, str) else bool(item)
        return ResultReason.ERROR_OBJECT if is_set else None
    if key in _SUCCESS_KEYS:
        return ResultReason.ERROR_OBJECT if item is False else None
    if key in _FLAG_KEYS:
        return ResultReason.ERROR_OBJECT if item is True else None
    if key in _EXIT_KEYS:
        return ResultReason.EXIT_CODE if _is_number(item) and item != 0 else None
    if key.endswith(("status", "status_code", "statuscode")):
        if isinstance(item, str) and item in _FAILED_STATUSES:
            return ResultReason.ERROR_OBJECT
        return ResultReason.HTTP if _is_http_error(item) else None
    return ResultReason.HTTP if key == "code" and "message" in value and _is_http_error(item) else None


def _is_http_error(item: Any) -> bool:
    if isinstance(item, str) and len(item) == 3 and item.isdigit():
        item = int(item)
    return _is_number(item) and 400 <= item <= 599


def _is_number(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _quote_member(
    status: ResultStatus, reason: ResultReason, text: str, start: int, key: str
) -> ResultClassification:
    position = text.find(f'"{key}"', start)
    begin = position if position >= 0 else start
    return ResultClassification(status=status, reason=reason, start=begin, end=find_line_end(text, begin + 1))
