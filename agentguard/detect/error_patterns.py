"""Error formats: a conservative table of the texts in which tools, shells and services report errors."""

from __future__ import annotations

import re

from agentguard.detect.result_status import ResultClassification, ResultReason, build_error, find_line_end

_HEAD_CHARS = 400
_TAIL_CHARS = 300
_SHORT_CHARS = 300

_LISTING_PATTERN = re.compile(r"(?:^|\n)[ ]*(?:\d+(?:→|\t)|line \d+:|```)")
_EXIT_PATTERN = re.compile(
    r"\bexit(?:ed)?[ _-]?(?:with )?(?:code|status)[\s:=]*(?:-\d|[1-9])\d*"
    r"|\breturned non-zero exit status \d+|\bexit code \(?[1-9]\d*"
    r"|<(?:returncode|return_code|exit_?code|exit_?status)>\s*(?:-\d|[1-9])\d*"
)
_LAST_EXIT_PATTERN = re.compile(
    r"(?:^|\n)[\[(<]?(?:the )?(?:command |process )?(?:exit(?:ed)?|return(?:ed)?)[ _-]?(?:with )?"
    r"(?:code|status)[\s:=>]*(?:-\d|[1-9])\d*"
)
_HTTP_PATTERN = re.compile(
    r"\b(?:http(?:/\d(?:\.\d)?)?|status(?:[ _]?code)?|error(?:[ _]code)?)[\"']?[\s:=]{1,3}[45]\d\d\b"
    r"|\b[45]\d\d:? (?:not found|forbidden|unauthorized|bad request|internal server error|bad gateway"
    r"|service unavailable|too many requests|gateway time-?out|client error|server error)"
)
_TEXT_PATTERN = re.compile(
    r"[\s\[(<*#]*(?:the |an? )?(?:(?:fatal|runtime|internal|unexpected|tool|api|execution|parse|syntax) )?"
    r"(?:error|exception|failure|failed)\b\s*(?:[:\])]|-(?=\s)|(?:occurred|executing|calling|while|in|when|to)\b)"
    r"|<(?:tool_use_error|error)>|[\s\[(<*#]*\w{1,40}(?:error|exception): "
)
_FLAG_PATTERN = re.compile(r"\bis_?error\\*[\"']?\s*[:=]\s*true\b")
_DENIED_PATTERN = re.compile(
    r"\bthe user (?:doesn't want|does not want|did not want|rejected|declined|denied|refused)\b[^\n]{0,80}"
    r"|\brequest interrupted by user|\bpermission (?:to use|to run)\b[^\n]{0,60}\b(?:denied|not granted)"
    r"|\byou haven't granted it yet"
)
_TEST_PATTERN = re.compile(
    r"\b[1-9]\d* (?:tests? )?failed\b(?=[,;.)]|\s*$|\s+(?:in|and|out|with|\d))|\b[1-9]\d* failing\b"
    r"|\bfailed \((?:failures|errors)=|\bbuild failed\b|\bcompil(?:e|ation) failed\b"
    r"|\b(?:failures|errors): [1-9]\d*\b"
)
_EXCEPTION_LINE_PATTERN = re.compile(r"(?:^|\n)\s*[\w.]{0,80}(?:error|exception)(?:: |\s*$)")
_ERROR_LINE_PATTERN = re.compile(
    r"(?:^|\n)(?:\[error\]|(?:error|fatal|panic|e): |npm err(?:!|or )|make(?:\[\d+\])?: \*\*\*"
    r"|[^\s:]{1,120}(?::\d+(?::\d+)?)?: (?:fatal )?error: )"
)
_CRASH_PATTERN = re.compile(r"\bsegmentation fault\b|\bcore dumped\b|\bunexpected eof\b|\bsyntax error\b")
_ADDRESSED_PATTERN = re.compile(
    r"[\s\[(*]*your [\w-]{1,20} (?:did not|does not|is invalid|could not|was rejected|has failed)\b"
    r"|[\s\[(*]*(?:the |this )?(?:file|path|directory|folder|element|page|item|url)(?: content)?"
    r"(?: [^\s]{1,80}| \([^()\n]{1,40}\))? "
    r"(?:does not exist|doesn't exist|was not found|could not be|exceeds (?:the )?maximum)"
)
_UTILITY_PATTERN = re.compile(
    r"(?:^|\n)[a-z][\w.+-]{0,30}: (?:[^\n]{0,100}\b(?:cannot|can't|missing|invalid|unknown|unrecognized"
    r"|unexpected|failed|must precede|usage:)|usage: )|: file exists\s*\Z"
)
_SYSTEM_ERROR_PATTERN = re.compile(
    r"\be(?:acces|noent|perm|exist|connrefused|connreset|timedout|notdir|isdir|addrinuse|hostunreach|notfound)\b"
)
_ERROR_END_PATTERN = re.compile(r"(?<!no )(?<!0 )\b(?:error|failure|failed|refused|denied)[.!]?\s*\Z")
_TIMEOUT_PATTERN = re.compile(r"\b(?:timed out|timeout(?: expired| error|:|$)|deadline exceeded)")
_REJECTED_PATTERN = re.compile(
    r"[\s\[>\"'*]*(?:\([^()\n]{0,80}\)\s*)?(?:sorry, )?(?:"
    r"you (?:can't|cannot|can ?not|can only|aren't|are not|haven't|have not|have no)\b"
    r"|you (?:don't|do not) (?:see|have|need|know|own|carry|hold)\b"
    r"|your [\w-]{1,20} (?:did not|does not|was not|is not|is invalid|could not|cannot)\b"
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
    r"|doesn't exist|not a directory|is a directory|operation not permitted|invalid option|not permitted"
    r"|not found|is not available|is not a valid \w+|unknown (?:tool|function|command)\b[^\n]{0,60})\W*$"
)
_NO_ACTION_PATTERN = re.compile(
    r"\bno (?:code|action|command|tool call|function call)s?\b[^\n]{0,60}"
    r"\b(?:to execute|for me to execute|found|detected|to run|was given|provided)"
)
_HEAD_MATCHERS = (
    (ResultReason.DENIED, _DENIED_PATTERN, ("user", "permission to")),
    (ResultReason.EXIT_CODE, _EXIT_PATTERN, ("exit", "returncode", "return_code")),
    (ResultReason.HTTP, _HTTP_PATTERN, ("http", "status", "error", "not found", "forbidden", "unauthor",
                                        "bad ", "gateway", "server", "unavailable", "too many")),
    (ResultReason.TEST_FAILURE, _TEST_PATTERN, ("fail", "errors: ")),
    (ResultReason.ERROR_TEXT, _ERROR_LINE_PATTERN, ("error", "fatal: ", "panic: ", "***")),
)  # fmt: skip
_TAIL_MATCHERS = (
    (ResultReason.ERROR_OBJECT, _FLAG_PATTERN, ("iserror", "is_error")),
    (ResultReason.EXIT_CODE, _LAST_EXIT_PATTERN, ("exit", "return")),
    (ResultReason.TEST_FAILURE, _TEST_PATTERN, ("fail", "errors: ")),
    (ResultReason.ERROR_TEXT, _ERROR_LINE_PATTERN, ("error", "fatal: ", "panic: ", "\ne: ", "***")),
)  # fmt: skip


def match_error_text(lower_text: str, start: int, end: int) -> ResultClassification | None:
    """Return the error that ``lower_text[start:end]`` reports, or None.

    ``end`` is the start of a quoted document; the text after it is content, not a report.
    """
    if "traceback (most recent call last)" in lower_text and end == len(lower_text):
        return _match_traceback(lower_text)
    head_end = min(end, _HEAD_CHARS)
    no_action = _NO_ACTION_PATTERN.search(lower_text, start, head_end)
    if no_action:
        return None
    opening = _TEXT_PATTERN.match(lower_text, start, head_end)
    if opening is None:
        rejection = _ADDRESSED_PATTERN.match(lower_text, start, head_end)
        if rejection:
            return build_error(
                ResultReason.REJECTED, rejection.start(), find_line_end(lower_text, rejection.end())
            )
    else:
        return build_error(ResultReason.ERROR_TEXT, opening.start(), find_line_end(lower_text, opening.end()))
    head = lower_text[:head_end]
    for reason, pattern, cues in _HEAD_MATCHERS:
        if any(cue in head for cue in cues):
            match = pattern.search(head, start)
            if match:
                return build_error(reason, match.start(), find_line_end(lower_text, match.end()))
    if end < len(lower_text):
        return None
    return _match_short_text(lower_text, start) or _match_last_lines(lower_text)


def find_document_start(lower_text: str, start: int) -> int:
    """Return the start of a listing or a code fence in the head; without one, the end of the text."""
    match = _LISTING_PATTERN.search(lower_text, start, start + _HEAD_CHARS)
    return match.start() if match else len(lower_text)


def match_missing_action(lower_text: str, start: int) -> tuple[int, int] | None:
    """Return the span of a statement that the turn contains nothing to execute, or None."""
    match = _NO_ACTION_PATTERN.search(lower_text, start, _HEAD_CHARS)
    return match.span() if match else None


def _match_traceback(lower_text: str) -> ResultClassification:
    start = lower_text.rfind("traceback (most recent call last)")
    tail = _EXCEPTION_LINE_PATTERN.search(lower_text, max(start, len(lower_text) - _TAIL_CHARS))
    position = tail.start() if tail else start
    while position < len(lower_text) and lower_text[position].isspace():
        position += 1
    return build_error(ResultReason.EXCEPTION, position, find_line_end(lower_text, position + 1))


def _match_short_text(lower_text: str, start: int) -> ResultClassification | None:
    """Match a short result that rejects the action; a long result may contain any words."""
    if len(lower_text) - start > _SHORT_CHARS:
        return None
    match = (
        _REJECTED_PATTERN.match(lower_text, start)
        or _REJECTED_TAIL_PATTERN.search(lower_text, start)
        or _SYSTEM_ERROR_PATTERN.search(lower_text, start)
    )
    if match:
        reason = ResultReason.REJECTED
    else:
        match = (
            _CRASH_PATTERN.search(lower_text, start)
            or _ERROR_END_PATTERN.search(lower_text, start)
            or _UTILITY_PATTERN.search(lower_text, start)
        )
        reason = ResultReason.ERROR_TEXT
    if not match:
        return None
    begin = match.start()
    while begin < len(lower_text) and lower_text[begin].isspace():
        begin += 1
    return build_error(reason, begin, find_line_end(lower_text, match.end()))


def _match_last_lines(lower_text: str) -> ResultClassification | None:
    """Match an error on the last lines, where a shell or an interpreter prints it."""
    base = max(0, len(lower_text) - _TAIL_CHARS)
    tail = lower_text[base:]
    if len(lower_text) <= _SHORT_CHARS and ("timed out" in tail or "timeout" in tail or "deadline" in tail):
        match = _TIMEOUT_PATTERN.search(tail)
        if match:
            return build_error(ResultReason.TIMEOUT, base + match.start(), base + match.end())
    for reason, pattern, cues in _TAIL_MATCHERS:
        if any(cue in tail for cue in cues):
            match = pattern.search(tail)
            if match:
                begin = base + match.start() + (tail[match.start()] == "\n")
                return build_error(reason, begin, find_line_end(lower_text, begin + 1))
    if ("error: " in tail or "exception: " in tail) and len(lower_text) <= _HEAD_CHARS + _TAIL_CHARS:
        line = _EXCEPTION_LINE_PATTERN.search(tail)
        if line:
            begin = base + line.start() + (tail[line.start()] == "\n")
            return build_error(ResultReason.EXCEPTION, begin, find_line_end(lower_text, begin + 1))
    return None
