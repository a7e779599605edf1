"""Texts of results that are empty, unusable or partial, and labels that harnesses write before a result."""

from __future__ import annotations

import re

from agentguard.detect.error_patterns import match_missing_action
from agentguard.detect.result_status import (
    ResultClassification,
    ResultReason,
    ResultStatus,
    find_line_end,
)

_MAX_EMPTY_CHARS = 200
_MAX_PAGE_CHARS = 2_500
_HEAD_CHARS = 400
_MAX_BINARY_MARKS = 8  # U+FFFD or NUL among the first code points
_EMPTY_TEXTS = frozenset(
    {"", "[]", "{}", "()", "null", "none", '""', "''", "[[]]", "[{}]", "nan", "undefined"}
)
_LABEL_PATTERN = re.compile(
    r"\s*(?:(?:the )?(?:command|tool|function|action|observation|output|result|response|code output)\b"
    r"[^\n:<>{}\[\]]{0,60}:\s*|<(?:output|stdout|result|observation|response|tool_response)>\s*)?"
)
_CLOSING_TAG_PATTERN = re.compile(r"</\w+>\s*\Z")
_NO_OUTPUT_PATTERN = re.compile(
    r"[(\[]?(?:your |the )?(?:\w+ ){0,3}(?:completed|ran|finished|executed|succeeded)(?: successfully)?"
    r"(?:,? (?:with|and) (?:no|produced no|did not produce any)|,? without)(?: any)? output"
    r"|[(\[<]?(?:no|empty) (?:output|content|response|result|stdout)[)\]>]?[.!]?\s*\Z"
)
_NO_MATCH_PATTERN = re.compile(
    r"[(\[]?(?:"
    r"(?:sorry, )?(?:there (?:are|were|is|was) )?no (?!such\b|known\b)(?:[\w'\"./*-]+ ){0,6}?"
    r"(?:found|returned|available|match(?:es|ed|ing)?|results?|records?|rows?|data|entries|hits)\b"
    r"|nothing (?:was )?(?:found|matched|returned)"
    r"|(?:found )?0 (?:results|rows|matches|records|items|files|hits)\b"
    r"|empty (?:set|list|result)|(?:could|did) ?n[o']t find any|(?:does|did|do) ?n[o']t match any)"
)
_BLOCKED_PAGE_PATTERN = re.compile(
    r"(?:enable|turn on|requires?|activate) (?:javascript|js)\b"
    r"|javascript (?:is|to be) (?:disabled|enabled|required)"
    r"|checking (?:your browser|if the site connection)"
    r"|verif(?:y|ying) (?:that )?you are (?:a |not a )?(?:human|robot)"
    r"|are you a (?:robot|human)|unusual traffic|complete the captcha|access to this page has been denied"
    r"|ddos protection by|attention required! \| cloudflare|just a moment\.\.\.|enable cookies"
    r"|unsupported browser|your browser is (?:not supported|out of date|outdated)"
)
_BLOCKED_PAGE_CUES = ("javascript", "checking", "verify", "robot", "traffic", "captcha", "denied", "ddos",
                      "cloudflare", "just a moment", "cookies", "browser")  # fmt: skip
_TRUNCATION_PATTERN = re.compile(
    r"[\[(<…][^\])>\n]{0,100}\b(?:truncated|clipped|omitted|elided)\b"
    r"|\b(?:output|response|result|content|file|observation|it) (?:was |is |has been |too long and )?"
    r"(?:truncated|clipped)\b|\bwe truncated\b|\btruncated (?:to|after|at|output|response)\b"
)
_TRUNCATION_CUES = ("truncated", "clipped", "omitted", "elided")


def skip_label(lower_text: str) -> int:
    """Return the offset after a label of the harness, such as "Command x returned:" or "<output>"."""
    match = _LABEL_PATTERN.match(lower_text)
    return match.end() if match else 0


def match_empty(lower_text: str, start: int) -> ResultClassification | None:
    """Match a result without content: nothing, no output, no match, or nothing to execute."""
    size = len(lower_text) - start
    if size <= 20 and _CLOSING_TAG_PATTERN.sub("", lower_text[start:]).strip() in _EMPTY_TEXTS:
        return _build(ResultStatus.EMPTY, ResultReason.NO_OUTPUT, 0, len(lower_text))
    action = match_missing_action(lower_text, start) if "no " in lower_text[:_HEAD_CHARS] else None
    if action is not None:
        end = find_line_end(lower_text, action[1])
        return _build(ResultStatus.EMPTY, ResultReason.NO_ACTION, action[0], end)
    for reason, pattern in (
        (ResultReason.NO_OUTPUT, _NO_OUTPUT_PATTERN),
        (ResultReason.NO_MATCH, _NO_MATCH_PATTERN),
    ):
        match = pattern.match(lower_text, start, start + _MAX_EMPTY_CHARS)
        if match and (size <= _MAX_EMPTY_CHARS or reason is ResultReason.NO_OUTPUT):
            return _build(ResultStatus.EMPTY, reason, start, find_line_end(lower_text, match.end()))
    return None


def match_unusable(lower_text: str, start: int) -> ResultClassification | None:
    """Match bytes of a file, or a page without the content of its site."""
    if lower_text.startswith("%pdf-", start):
        return _build(ResultStatus.UNUSABLE, ResultReason.BINARY, start, find_line_end(lower_text, start))
    head = lower_text[start : start + _HEAD_CHARS]
    if head.count("\ufffd") + head.count("\x00") > _MAX_BINARY_MARKS:
        return _build(ResultStatus.UNUSABLE, ResultReason.BINARY, start, start + min(len(head), 160))
    if len(lower_text) - start <= _MAX_PAGE_CHARS and any(cue in lower_text for cue in _BLOCKED_PAGE_CUES):
        match = _BLOCKED_PAGE_PATTERN.search(lower_text, start)
        if match:
            return _build(ResultStatus.UNUSABLE, ResultReason.BLOCKED_PAGE, *match.span())
    return None


def match_partial(lower_text: str) -> ResultClassification | None:
    """Match a note of the tool that it omitted a part of the result."""
    for cue in _TRUNCATION_CUES:
        position = lower_text.find(cue)
        if position >= 0:
            match = _TRUNCATION_PATTERN.search(lower_text, max(0, position - 110), position + 40)
            if match:
                return _build(ResultStatus.PARTIAL, ResultReason.TRUNCATED, *match.span())
    return None


def _build(status: ResultStatus, reason: ResultReason, start: int, end: int) -> ResultClassification:
    return ResultClassification(status=status, reason=reason, start=start, end=end)
