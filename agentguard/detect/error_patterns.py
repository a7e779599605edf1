"""Error patterns: a conservative table of error formats in texts from the environment.

A recorded error flag takes precedence over the text. Patterns are matched only at the head and the tail of a
text, where tools print errors: the middle of a long page or document may mention errors as its subject.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_HEAD_CHARS = 400
_TAIL_CHARS = 300
_SHORT_CHARS = 300


class ToolErrorKind(StrEnum):
    """Kind of error in a tool result."""

    FLAGGED = "flagged"
    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    HTTP = "http"
    ERROR_OBJECT = "error_object"
    ERROR_TEXT = "error_text"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    NO_ACTION = "no_action"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorMatch:
    """Match of an error pattern at ``text[start:end]``."""

    kind: ToolErrorKind
    start: int
    end: int


_EXIT_PATTERN = re.compile(
    r"\bexit(?:ed)?[ _-]?(?:with )?(?:code|status)[\s:=]*(?:-\d|[1-9])\d*"
    r"|\breturned non-zero exit status \d+|\bexit code \(?[1-9]\d*"
)
_HTTP_PATTERN = re.compile(
    r"\b(?:http(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?|error(?:[ _]code)?)[\"']?[\s:=]{1,3}[45]\d\d\b"
    r"|\b[45]\d\d:? (?:not found|forbidden|unauthorized|bad request|internal server error|bad gateway"
    r"|service unavailable|too many requests|gateway time-?out|client error|server error)"
)
_OBJECT_PATTERN = re.compile(
    r"[\"'](?:error|errors|exception|error_message)[\"']\s*:\s*(?![\s]|null\b|none\b|false\b|0\b|\"\"|''|\[\]|\{\})"
    r"|[\"'](?:success|ok)[\"']\s*:\s*false\b"
    r"|[\"']status[\"']\s*:\s*[\"'](?:error|failed|failure)[\"']"
    r"|[\"']is_?error[\"']\s*:\s*true\b"
)
_TEXT_PATTERN = re.compile(
    r"[\s\[(<*#]*(?:the |an? )?(?:(?:fatal|runtime|internal|unexpected|tool|api|execution|parse|syntax) )?"
    r"(?:error|exception|failure|failed)\b\s*(?:[:\-\])]|(?:occurred|executing|calling|while|in|when|to)\b)"
)
_EXCEPTION_LINE_PATTERN = re.compile(r"(?:^|\n)\s*[\w.]{0,80}(?:error|exception)(?:: |\s*$)")
_TIMEOUT_PATTERN = re.compile(r"\b(?:timed out|timeout(?: expired| error|:|$)|deadline exceeded)")
_REJECTED_PATTERN = re.compile(
    r"\A[\s\[>\"'*]*(?:\([^()\n]{0,80}\)\s*)?(?:sorry, )?(?:"
    r"you (?:can't|cannot|can ?not|can only|aren't|are not|haven't|have not|have no)\b"
    r"|you (?:don't|do not) (?:see|have|need|know|own|carry|hold)\b"
    r"|the [\w' ]{1,40} (?:is|are) (?:closed|locked|not (?:here|open|there|available))\b[^\n]{0,20}\Z"
    r"|you (?:need to|have to|must)\b"
    r"|(?:that's|that is|this is|it's|it is) (?:not|already|locked|closed|fixed in place|hardly)\b"
    r"|i (?:didn't|don't|did not|do not|only) (?:understand|understood|know)"
    r"|nothing happen(?:s|ed)|(?:can't|cannot) see any"
    r"|(?:invalid|unknown|illegal|unrecognized|unsupported|forbidden) "
    r"(?:action|command|argument|arguments|parameter|request|tool|function|option|move|operation)"
    r"|no (?:known action|such (?:file|tool|command|object|item|option))"
    r"|there (?:is|'s) no (?:such|exit|way)|you'll have to say|what do you want to"
    r"|could not|couldn't|unable to|permission denied|access denied|not allowed|not permitted)"
)
_REJECTED_TAIL_PATTERN = re.compile(
    r"\b(?:command not found|no such file or directory|permission denied|is not recogni[sz]ed|does not exist"
    r"|not found|is not available|is not a valid \w+|unknown (?:tool|function|command)\b[^\n]{0,60})\W*$"
)
_NO_ACTION_PATTERN = re.compile(
    r"\bno (?:code|action|command|tool call|function call)s?\b[^\n]{0,60}"
    r"\b(?:to execute|for me to execute|found|detected|to run|was given|provided)"
)
_ERROR_CUES = {
    ToolErrorKind.EXIT_CODE: ("exit",),
    ToolErrorKind.HTTP: ("http", "status", "error", "not found", "forbidden", "unauthor", "bad ",
                         "gateway", "server", "unavailable", "too many"),
    ToolErrorKind.ERROR_TEXT: ("error", "exception", "fail"),
    ToolErrorKind.TIMEOUT: ("timed out", "timeout", "deadline exceeded"),
    ToolErrorKind.NO_ACTION: ("no code", "no action", "no command", "no tool call", "no function call"),
}  # fmt: skip


def match_error(lower_text: str, *, flag: bool | None = None) -> ErrorMatch | None:
    """Return the error in a lower-case result, or None; ``flag`` is the recorded error flag, if there is one.

    The cost is bounded: the function reads only head and tail, besides two plain substring searches.
    """
    if flag is False:
        return None
    match = _match_shape(lower_text)
    if flag and match is None:
        return ErrorMatch(kind=ToolErrorKind.FLAGGED, start=0, end=min(len(lower_text), _HEAD_CHARS))
    return match


def _match_shape(lower_text: str) -> ErrorMatch | None:
    if "traceback (most recent call last)" in lower_text:
        return _match_traceback(lower_text)
    head = lower_text[:_HEAD_CHARS]
    opening = head.lstrip()[:2]
    if opening[:1] == "{":
        return _match_object(head)
    if opening[:1] == "[" and not opening[1:].isalpha():  # a JSON list; "[error] ..." is a log line
        return None
    for kind, pattern, match_only in _HEAD_MATCHERS:
        if any(cue in head for cue in _ERROR_CUES[kind]):
            match = pattern.match(head) if match_only else pattern.search(head)
            if match:
                return ErrorMatch(kind=kind, start=match.start(), end=_find_line_end(lower_text, match.end()))
    return _match_rejection(lower_text) or _match_last_line(lower_text)


_HEAD_MATCHERS = (
    (ToolErrorKind.NO_ACTION, _NO_ACTION_PATTERN, False),
    (ToolErrorKind.EXIT_CODE, _EXIT_PATTERN, False),
    (ToolErrorKind.ERROR_TEXT, _TEXT_PATTERN, True),
    (ToolErrorKind.HTTP, _HTTP_PATTERN, False),
)


def _match_traceback(lower_text: str) -> ErrorMatch:
    start = lower_text.rfind("traceback (most recent call last)")
    tail = _EXCEPTION_LINE_PATTERN.search(lower_text, max(start, len(lower_text) - _TAIL_CHARS))
    position = tail.start() if tail else start
    while position < len(lower_text) and lower_text[position].isspace():
        position += 1
    return ErrorMatch(
        kind=ToolErrorKind.EXCEPTION, start=position, end=_find_line_end(lower_text, position + 1)
    )


def _match_object(head: str) -> ErrorMatch | None:
    if not ("error" in head or "exception" in head or "false" in head or "fail" in head):
        return None
    match = _OBJECT_PATTERN.search(head, 0, 200)
    return (
        ErrorMatch(
            kind=ToolErrorKind.ERROR_OBJECT, start=match.start(), end=_find_line_end(head, match.end())
        )
        if match
        else None
    )


def _match_rejection(lower_text: str) -> ErrorMatch | None:
    """Match a short answer that rejects the action; a long answer is a document and may contain any words."""
    if len(lower_text) > _SHORT_CHARS:
        return None
    match = _REJECTED_PATTERN.search(lower_text) or _REJECTED_TAIL_PATTERN.search(lower_text)
    if not match:
        return None
    start = match.start()
    while start < len(lower_text) and lower_text[start].isspace():
        start += 1
    return ErrorMatch(kind=ToolErrorKind.REJECTED, start=start, end=_find_line_end(lower_text, match.end()))


def _match_last_line(lower_text: str) -> ErrorMatch | None:
    """Match an exception on the last lines, where a shell or an interpreter prints it."""
    base = max(0, len(lower_text) - _TAIL_CHARS)
    tail = lower_text[base:]
    if len(lower_text) <= _SHORT_CHARS and any(cue in tail for cue in _ERROR_CUES[ToolErrorKind.TIMEOUT]):
        match = _TIMEOUT_PATTERN.search(tail)
        if match:
            return ErrorMatch(kind=ToolErrorKind.TIMEOUT, start=base + match.start(), end=base + match.end())
    if "error: " in tail or "exception: " in tail:
        line = _EXCEPTION_LINE_PATTERN.search(tail)
        if line and len(lower_text) <= _HEAD_CHARS + _TAIL_CHARS:
            start = base + line.start() + (1 if tail[line.start()] == "\n" else 0)
            return ErrorMatch(
                kind=ToolErrorKind.EXCEPTION, start=start, end=_find_line_end(lower_text, start + 1)
            )
    return None


def _find_line_end(text: str, offset: int, limit: int = 160) -> int:
    end = text.find("\n", offset, offset + limit)
    return min(len(text), offset + limit) if end < 0 else end
