"""Classification of tool results: ok, error, empty, unusable or partial, with the reason and the quoted span.

A recorded error flag takes precedence over the text. Patterns are matched at the head and the tail of a text,
where tools print errors: the middle of a long page or document may mention errors as its subject.
"""

from __future__ import annotations

from functools import lru_cache

from agentguard.detect._error_text import find_document_start, match_error_text
from agentguard.detect._json_result import classify_json
from agentguard.detect._result_model import ResultClassification, ResultReason, ResultStatus
from agentguard.detect._result_text import match_empty, match_partial, match_unusable, skip_label

USABLE = ResultClassification(status=ResultStatus.OK)
"""Classification of a result without any fault."""

_MAX_FLAGGED_CHARS = 400
_MAX_CACHED_CHARS = 4_000


def classify_result(lower_text: str, *, flag: bool | None = None) -> ResultClassification:
    """Classify a lower-case result; ``flag`` is the recorded error flag, if there is one.

    A flag that is false excludes an error, not an empty, unusable or partial result. The cost is bounded:
    the function reads head and tail, parses JSON of at most 20,000 code points and searches a few substrings.
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


# Detectors, judge and localizer classify the same results of a run, one after the other.
_classify_short_text = lru_cache(maxsize=512)(_classify_text)


def _is_structured(lower_text: str, start: int) -> bool:
    """Return True for JSON and for Python literals; "[error] ..." is a log line."""
    opening = lower_text[start : start + 2]
    return opening[:1] == "{" or (opening[:1] == "[" and not opening[1:].isalpha())


__all__ = ["USABLE", "ResultClassification", "ResultReason", "ResultStatus", "classify_result"]
