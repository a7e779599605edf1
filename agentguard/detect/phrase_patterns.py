"""Phrases of agents and users: success, errors, fabrication, refusal, intent, guesses, surrender, objections.

Every search reads lower-case text. Plain substring tests run before a pattern, at a tenth of its cost.
"""

from __future__ import annotations

import re

from agentguard.detect._text import find_sentence_start

_DONE_VERBS = (
    r"(?:booked|cancell?ed|updated|changed|modified|upgraded|downgraded|sent|created|deleted|added|removed"
    r"|transferred|processed|completed|fixed|resolved|solved|submitted|saved|installed|placed|refunded"
    r"|scheduled|finished|implemented|applied|purchased|paid|moved|uploaded|deployed|achieved|accomplished)"
)
_SUCCESS_PATTERN = (
    (
        "success",
        re.compile(rf"\bsuccessfully (?P<verb>\w+)|\bwas successful|\b(?P<verb2>{_DONE_VERBS}) successfully"),
    ),
    (" been ", re.compile(rf"\b(?:has|have) been (?:now |already )?(?P<verb>{_DONE_VERBS})\b")),
    ("i've ", re.compile(rf"\bi've (?:now |just )?(?P<verb>{_DONE_VERBS})\b")),
    ("i have ", re.compile(rf"\bi have (?:now |just )?(?P<verb>{_DONE_VERBS})\b")),
    (
        " complete",
        re.compile(
            r"\b(?:task|goal|objective|everything) (?:is|was|has been)(?: now)? (?P<verb>completed?)\b"
        ),
    ),
    (" done", re.compile(r"\b(?:task|job|work|all|everything) (?:is |was )?(?P<verb>done)\b")),
)
_STATE_PATTERN = re.compile(
    r"\A\W*(?:good|great|excellent|perfect|wonderful|done|nice|well done)[,.!]"
    r"|\b(?:is|are) (?:now |already |safely )?"
    rf"(?P<verb>{_DONE_VERBS}|stored|in place|in the right place|ready|opened)\b"
)
SUCCESS_CUES = tuple(cue for cue, _ in _SUCCESS_PATTERN)
"""Substrings; every text with a claim of success contains at least one. So do the other ``…_CUES``."""

_NON_ASSERTION_PATTERN = re.compile(
    r"\b(?:not|never|no|unable|cannot|can|could|failed|fail|once|after|if|when|whether|until|unless|will|would"
    r"|should|must|may|might|to be|before|error|ensure|verify|confirm|assuming|let|need|please|were|had)\b"
    r"|n't\b|\?"
)
_ERROR_ACKNOWLEDGED_PATTERN = (
    "error", "fail", "issue", "problem", "unfortunately", "sorry", "apolog", "unable", "cannot", "can't",
    "couldn't", "could not", "not able", "n't ", "invalid", "incorrect", "instead", "retry", "missing",
    "not found", "however", "oversight", "wrong", "mistake", "not available", "unavailable", "timeout",
    "timed out", "timing out", "adjust", "alternative", "another ", "not enough", "exceed", "no longer",
    "not possible", "locked", "reject", "unsuccess", "exception", "crash", "did not", "does not", "is not",
    "missed", "discrepancy", "denied", "refused", "insufficient", "correct file",
)  # fmt: skip
_CORRECTIVE_ACTION_PATTERN = (
    " try", "again", "seems", "appears", "looks like", "correct", "different", "fix", "need", "debug",
    "resolve", "install", "import", "not ", "change", "update", "ensure", "limit", "improve", "verify",
)  # fmt: skip
_FABRICATION_PATTERN = re.compile(
    r"\b(?:let(?:'s| us|s)? (?:assume|say|suppose|pretend|simulate)"
    r"|(?:i|we)(?:'ll| will| shall)? (?:just |now )?(?:assume|simulate|pretend|mock up|make up)\b"
    r"|(?:for (?:the sake of|demonstration|illustrat\w+|the purpose of) \w+)"
    r"|(?:mock|dummy|placeholder|fictional|fictitious|made-up|simulated|hypothetical|fake|assumed) "
    r"(?:\w+ )?(?:data|values?|numbers?|results?|example|list|response|information|prices?|dates?|names?|set)"
    r"|simulat(?:e|ing) (?:the |a |an )?(?:\w+ )?"
    r"(?:data|results?|numbers?|search|response|output|extraction|values)"
    r"|replace (?:this |it |these )?with (?:the )?(?:actual|real))"
)
FABRICATION_CUES = ("assum", "simulat", "mock", "dummy", "placeholder", "fict", "made-up", "hypothetic",
                     "fake", "pretend", "suppose", "for the sake", "demonstration", "illustrat", "replace",
                 "let's say")  # fmt: skip
_REFUSAL_PATTERN = re.compile(
    r"[\s*_>\"']*(?:i'm sorry,?|i am sorry,?|sorry,?|i apologi[sz]e,?|unfortunately,?)?\s*(?:but )?"
    r"(?:as an ai(?: language)? (?:model|assistant),? )?(?:but )?"
    r"(?:i (?:can't|cannot|can not|am unable to|'m unable to|won't|am not able to|will not|must decline to)"
    r"|i'm (?:unable|not able) to)\s+"
    r"(?:assist|help|comply|fulfil\w*|provide|do that|do this|answer|complete|continue|support|engage"
    r"|discuss|participate)"
    r"(?: (?:you )?(?:with|you|in|on))?"
)
REFUSAL_CUES = (
    "can't", "cannot", "can not", "unable to", "won't", "not able to", "will not", "must decline to",
)  # fmt: skip
_INTENT_PATTERN = re.compile(
    r"(?:\bi(?:'ll| will| am going to|'m going to)(?: now)?|\blet me(?! know)(?: now)?"
    r"|\bnext,? (?:i|we)(?:'ll| will)"
    r"|\blet's(?: now)?(?: proceed| start| begin| continue| run| execute)|\bplease (?:wait|hold on|bear with)"
    r"|\bone moment|\bwe(?:'ll| will)(?: now| next)?|\bnow,? (?:i|we)(?:'ll| will))\b"
)
INTENT_CUES = (
    "i'll", "i will", "i am going to", "i'm going to", "let me", "let's", "we'll", "we will", "please ",
    "one moment",
)  # fmt: skip
_HEDGE_PATTERN = re.compile(
    r"\b(?:based on|from|using) (?:my |general |common |existing |prior |typical |background )"
    r"(?:general |common |training |own )?(?:knowledge|training|understanding|information)\b"
    r"|\b(?:my|the) best (?:guess|estimate)\b|\bmost plausible\b|\beducated guess\b"
    r"|\bi (?:would|will|'ll) guess\b"
    r"|\bas of my (?:last|knowledge|training)\b|\bcommonly known\b"
    r"|\bwithout (?:being able|access) to\b[^.\n]{0,60}\b(?:verify|confirm|check|data|source)"
)
_HEDGE_CUES = ("knowledge", "guess", "plausible", "estimate", "training", "understanding", "information",
               "without", "commonly known")  # fmt: skip
_NEGATIVE_PATTERN = re.compile(
    r"\bthere (?:are|is|were|was) (?:currently |apparently )?no\b|\b(?:do|does|did)(?: not|n't) exist\b"
    r"|\bno [\w -]{1,40} (?:exists?|is available|are available|was found|were found|could be found)\b"
    r"|\bnone (?:of|exist|were|are)\b|\b(?:has|have) no\b"
    r"|\bnot (?:a |any )?(?:listed|registered|in the (?:system|database))\b"
)
_SURRENDER_PATTERN = re.compile(
    r"\bout of options\b|\bgiv(?:e|ing) up\b"
    r"|\b(?:could not|couldn't|cannot|can't|unable to|not able to|failed to)"
    r" (?:\w+ ){0,2}(?:complete|finish|solve|fulfil|reach|find|determine|answer|achieve|do|proceed)\b"
    r"|\b(?:request|task) (?:was |has |is |can ?not be |could not be )?(?:not )?(?:been )?"
    r"(?:not satisfied|not completed?|not finished|not solved|unsolved|infeasible|impossible)\b"
    r"|\bcannot be (?:completed|solved|answered|done|determined|fulfilled)\b"
    r"|\b(?:mark|marking|marked) (?:this |the )?task as (?:failed|infeasible|impossible)\b"
    r"|\A\W*n/a\W*\Z|\b(?:final )?answer(?: is)?:? n/a\b"
)
_SURRENDER_CUES = ("could not", "cannot", "couldn't", "can't", "unable to", "not able", "failed", "unsolved",
                   "not satisfied", "not complete", "not finished", "not solved", "infeasible", "impossible",
                   "out of options", "give up", "giving up", "n/a")  # fmt: skip
_LIMIT_PATTERN = re.compile(
    r"\b(?:max(?:imum)?|limit)[ _-]?(?:number of |of )?"
    r"(?:iterations?|steps?|turns?|rounds?|actions?|calls?)\b[^\n]{0,40}\b(?:reached|exceeded|exhausted)\b"
    r"|\b(?:reached|exceeded|exhausted|hit) "
    r"(?:the |its )?(?:max(?:imum)?|limit|step limit|turn limit|budget)\b"
    r"|\bran out of (?:steps|turns|iterations|time|budget)\b|\bagent stopped due to (?:iteration|max|time)"
)
_LIMIT_CUES = ("reached", "exceeded", "exhausted", "hit ", "ran out of", "stopped due to")
SURRENDER_CUES = (*_SURRENDER_CUES, *_LIMIT_CUES)
"""Substrings; every text with a surrender contains at least one."""

_STATUS_PATTERN = re.compile(
    r"max_?(?:iterations|steps|turns)|limits?_?exceeded|exit_(?:cost|context|format|error|forfeit)|timeout"
    r"|step_limit|budget|recursion|infrastructure_error|too_many"
)
_CONFIRMATION_PATTERN = re.compile(
    r"\A\W*(?:yes|yep|yeah|sure|ok(?:ay)?|correct|confirmed?|i confirm|please (?:proceed|go ahead|do))\b"
    r"|\b(?:go ahead|please proceed|i confirm|do it|that works)\b"
)
_CONDITION_PATTERN = re.compile(r"\b(?:but|however|before|first|wait|unless|instead|no,)\b|\?")
_OBJECTION_PATTERN = re.compile(
    r"\A\W*(?:no[,.! ]|wait[,. ]|hold on|stop[,. ])"
    r"|\b(?:that(?:'s| is| was)(?: not|n't) (?:what|right|correct|the)"
    r"|not what i (?:asked|wanted|said|meant)"
    r"|i (?:didn't|did not|never) (?:ask|want|say|request|authori[sz]e|agree)"
    r"|you (?:booked|cancell?ed|changed"
    r"|sent|ordered|charged|deleted) the wrong|(?:is|was|are) wrong\b"
    r"|undo (?:that|this|it)|you made a mistake)"
)
_OBJECTION_EXEMPTION = re.compile(
    r"\A\W*no,? (?:that(?:'s| is) (?:all|it|everything|fine)"
    r"|thank|problem|nothing|more|further|i don't need|other)"
)
_CORRECTION_PATTERN = re.compile(
    r"\A\W*actually\b"
    r"|\b(?:i(?:'d| would)? (?:prefer|rather)|(?:can|could|would) you|please)\b[^.?!\n]{0,120}\binstead\b"
)
_MAX_READ_CHARS = 4_000


def find_success_claim(lower_text: str) -> tuple[int, int, str] | None:
    """Return ``(start, end, verb)`` of the first claim that something was done, or None.

    Negated and conditional claims, questions and statements about the future do not count.
    """
    for cue, pattern in _SUCCESS_PATTERN:
        if cue not in lower_text:
            continue
        for match in pattern.finditer(lower_text):
            before = find_sentence_start(lower_text, match.start(), 120)
            if not _NON_ASSERTION_PATTERN.search(lower_text, before, match.start()):
                verbs = match.groupdict()
                return match.start(), match.end(), verbs.get("verb") or verbs.get("verb2") or "succeeded"
    return None


def find_satisfaction_claim(lower_text: str) -> tuple[int, int, str] | None:
    """Return the first claim of success, contentment ("Good, ...") or state ("is now stored").

    Use this only for turns after an error; in other turns such words are too common.
    """
    claim = find_success_claim(lower_text)
    if claim is not None:
        return claim
    content = None
    for match in _STATE_PATTERN.finditer(lower_text, 0, 2_000):
        if not _NON_ASSERTION_PATTERN.search(
            lower_text, find_sentence_start(lower_text, match.start(), 120), match.start()
        ):
            content = match.start(), match.end(), match["verb"] or "succeeded"
            if match["verb"]:  # a match without a verb, such as "Good, ...", does not name the action
                break
    return content


def acknowledges_error(lower_text: str, *, acting: bool = False) -> bool:
    """Return True if a text mentions a failure; with ``acting``, also if it only names a correction."""
    return any(cue in lower_text for cue in _ERROR_ACKNOWLEDGED_PATTERN) or (
        acting and any(cue in lower_text for cue in _CORRECTIVE_ACTION_PATTERN)
    )


def find_fabrication(lower_text: str) -> tuple[int, int] | None:
    """Return the span of an admission that data is assumed, simulated or a placeholder, or None."""
    if not any(cue in lower_text for cue in FABRICATION_CUES):
        return None
    match = _FABRICATION_PATTERN.search(lower_text, 0, 20_000)
    return match.span() if match else None


def find_refusal(lower_text: str) -> tuple[int, int] | None:
    """Return the span of a refusal at the start of a text, or None."""
    if not any(cue in lower_text for cue in REFUSAL_CUES):
        return None
    match = _REFUSAL_PATTERN.match(lower_text, 0, 400)
    return match.span() if match else None


def find_last_intent(lower_text: str) -> tuple[int, int] | None:
    """Return the span of an announcement in the last sentence, if it is in the last 300 code points."""
    base = max(0, len(lower_text) - 300)
    if not any(lower_text.find(cue, base) >= 0 for cue in INTENT_CUES):
        return None
    matches = list(_INTENT_PATTERN.finditer(lower_text, base))
    if not matches:
        return None
    match = matches[-1]
    rest = lower_text[match.end() :].rstrip(" .:!*`\n")
    return match.span() if "\n\n" not in rest and ". " not in rest and "?" not in rest else None


def find_hedge(lower_text: str) -> tuple[int, int] | None:
    """Find an admission that an answer is a guess or is based on general knowledge."""
    if not any(cue in lower_text for cue in _HEDGE_CUES):
        return None
    return _find_span(_HEDGE_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def find_negative_claim(lower_text: str) -> tuple[int, int] | None:
    """Find a statement that something does not exist or is not available."""
    return _find_span(_NEGATIVE_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def find_surrender(lower_text: str) -> tuple[int, int] | None:
    """Find a statement near the end of a text that the agent gave up or reached a limit of steps."""
    base = max(0, len(lower_text) - 600)
    tail = lower_text[base:]
    match = _SURRENDER_PATTERN.search(tail) if any(cue in tail for cue in _SURRENDER_CUES) else None
    if match is None and any(cue in tail for cue in _LIMIT_CUES):
        match = _LIMIT_PATTERN.search(tail)
    return (base + match.start(), base + match.end()) if match else None


def is_limit_status(exit_status: str) -> bool:
    """Return whether a recorded exit status means that a limit or an error stopped the run."""
    return _STATUS_PATTERN.search(exit_status.lower().replace("-", "_")) is not None


def find_confirmation(lower_text: str) -> tuple[int, int] | None:
    """Find an unconditional confirmation in a user's turn."""
    if _CONDITION_PATTERN.search(lower_text, 0, _MAX_READ_CHARS):
        return None
    return _find_span(_CONFIRMATION_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def find_objection(lower_text: str) -> tuple[int, int] | None:
    """Find an objection in a user's turn; "No, that is all" is not one."""
    if _OBJECTION_EXEMPTION.match(lower_text):
        return None
    return _find_span(_OBJECTION_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def find_correction(lower_text: str) -> tuple[int, int] | None:
    """Find a request for another result, such as "Actually, I'd prefer ..."."""
    return _find_span(_CORRECTION_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def _find_span(match: re.Match[str] | None) -> tuple[int, int] | None:
    return match.span() if match else None
