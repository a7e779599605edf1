"""What an error looks like in the text that an environment returned: a conservative table of shapes.

A recorded error flag outranks the text. Shapes are looked for at the head and the tail of a text only, where
tools put them: the middle of a long page or document may well speak of errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_HEAD = 400
_TAIL = 300
_SHORT = 300


class Kind(StrEnum):
    """What kind of error a result shows."""

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
class Trouble:
    """An error shape found at ``text[start:end]``."""

    kind: Kind
    start: int
    end: int


_EXIT = re.compile(
    r"\bexit(?:ed)?[ _-]?(?:with )?(?:code|status)[\s:=]*(?:-\d|[1-9])\d*"
    r"|\breturned non-zero exit status \d+|\bexit code \(?[1-9]\d*"
)
_HTTP = re.compile(
    r"\b(?:http(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?|error(?:[ _]code)?)[\"']?[\s:=]{1,3}[45]\d\d\b"
    r"|\b[45]\d\d:? (?:not found|forbidden|unauthorized|bad request|internal server error|bad gateway"
    r"|service unavailable|too many requests|gateway time-?out|client error|server error)"
)
_OBJECT = re.compile(
    r"[\"'](?:error|errors|exception|error_message)[\"']\s*:\s*(?![\s]|null\b|none\b|false\b|0\b|\"\"|''|\[\]|\{\})"
    r"|[\"'](?:success|ok)[\"']\s*:\s*false\b"
    r"|[\"']status[\"']\s*:\s*[\"'](?:error|failed|failure)[\"']"
    r"|[\"']is_?error[\"']\s*:\s*true\b"
)
_TEXT = re.compile(
    r"[\s\[(<*#]*(?:the |an? )?(?:(?:fatal|runtime|internal|unexpected|tool|api|execution|parse|syntax) )?"
    r"(?:error|exception|failure|failed)\b\s*(?:[:\-\])]|(?:occurred|executing|calling|while|in|when|to)\b)"
)
_EXCEPTION_LINE = re.compile(r"(?:^|\n)\s*[\w.]{0,80}(?:error|exception)(?:: |\s*$)")
_TIMEOUT = re.compile(r"\b(?:timed out|timeout(?: expired| error|:|$)|deadline exceeded)")
_REJECTED = re.compile(
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
_REJECTED_TAIL = re.compile(
    r"\b(?:command not found|no such file or directory|permission denied|is not recogni[sz]ed|does not exist"
    r"|not found|is not available|is not a valid \w+|unknown (?:tool|function|command)\b[^\n]{0,60})\W*$"
)
_NO_ACTION = re.compile(
    r"\bno (?:code|action|command|tool call|function call)s?\b[^\n]{0,60}"
    r"\b(?:to execute|for me to execute|found|detected|to run|was given|provided)"
)
_CUES = {
    Kind.EXIT_CODE: ("exit",),
    Kind.HTTP: ("http", "status", "error", "not found", "forbidden", "unauthor", "bad ", "gateway", "server",
                "unavailable", "too many"),
    Kind.ERROR_TEXT: ("error", "exception", "fail"),
    Kind.TIMEOUT: ("timed out", "timeout", "deadline exceeded"),
    Kind.NO_ACTION: ("no code", "no action", "no command", "no tool call", "no function call"),
}  # fmt: skip


def trouble(low: str, *, flag: bool | None = None) -> Trouble | None:
    """Recognise an error in a lower-case result; ``flag`` is what the recording says, if it does.

    Cost is bounded: only the head and the tail are looked at, besides two plain substring searches.
    """
    if flag is False:
        return None
    found = _shape(low)
    if flag and found is None:
        return Trouble(kind=Kind.FLAGGED, start=0, end=min(len(low), _HEAD))
    return found


def _shape(low: str) -> Trouble | None:
    if "traceback (most recent call last)" in low:
        return _traceback(low)
    head = low[:_HEAD]
    opening = head.lstrip()[:2]
    if opening[:1] == "{":
        return _object(head)
    if opening[:1] == "[" and not opening[1:].isalpha():  # a JSON list; "[error] ..." is a log line
        return None
    for kind, pattern, match_only in _HEAD_SHAPES:
        if any(cue in head for cue in _CUES[kind]):
            found = pattern.match(head) if match_only else pattern.search(head)
            if found:
                return Trouble(kind=kind, start=found.start(), end=_line_end(low, found.end()))
    return _rejected(low) or _last_line(low)


_HEAD_SHAPES = (
    (Kind.NO_ACTION, _NO_ACTION, False),
    (Kind.EXIT_CODE, _EXIT, False),
    (Kind.ERROR_TEXT, _TEXT, True),
    (Kind.HTTP, _HTTP, False),
)


def _traceback(low: str) -> Trouble:
    start = low.rfind("traceback (most recent call last)")
    tail = _EXCEPTION_LINE.search(low, max(start, len(low) - _TAIL))
    at = tail.start() if tail else start
    while at < len(low) and low[at].isspace():
        at += 1
    return Trouble(kind=Kind.EXCEPTION, start=at, end=_line_end(low, at + 1))


def _object(head: str) -> Trouble | None:
    if not ("error" in head or "exception" in head or "false" in head or "fail" in head):
        return None
    found = _OBJECT.search(head, 0, 200)
    return (
        Trouble(kind=Kind.ERROR_OBJECT, start=found.start(), end=_line_end(head, found.end()))
        if found
        else None
    )


def _rejected(low: str) -> Trouble | None:
    """A short answer that says no: a long one is a document, and a document may say anything."""
    if len(low) > _SHORT:
        return None
    found = _REJECTED.search(low) or _REJECTED_TAIL.search(low)
    if not found:
        return None
    start = found.start()
    while start < len(low) and low[start].isspace():
        start += 1
    return Trouble(kind=Kind.REJECTED, start=start, end=_line_end(low, found.end()))


def _last_line(low: str) -> Trouble | None:
    """An exception on the last lines, where a shell or an interpreter leaves it."""
    base = max(0, len(low) - _TAIL)
    tail = low[base:]
    if len(low) <= _SHORT and any(cue in tail for cue in _CUES[Kind.TIMEOUT]):
        found = _TIMEOUT.search(tail)
        if found:
            return Trouble(kind=Kind.TIMEOUT, start=base + found.start(), end=base + found.end())
    if "error: " in tail or "exception: " in tail:
        line = _EXCEPTION_LINE.search(tail)
        if line and len(low) <= _HEAD + _TAIL:
            start = base + line.start() + (1 if tail[line.start()] == "\n" else 0)
            return Trouble(kind=Kind.EXCEPTION, start=start, end=_line_end(low, start + 1))
    return None


def _line_end(text: str, at: int, limit: int = 160) -> int:
    end = text.find("\n", at, at + limit)
    return min(len(text), at + limit) if end < 0 else end
