"""Wording of answers and user turns: guesses, absence, surrender, confirmations and objections.

Every search reads lower-case text and returns the span of the first match, or None.
"""

from __future__ import annotations

import re

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


def find_hedge(lower_text: str) -> tuple[int, int] | None:
    """Find an admission that an answer is a guess or is based on general knowledge."""
    if not any(cue in lower_text for cue in _HEDGE_CUES):
        return None
    return _span(_HEDGE_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def find_negative_claim(lower_text: str) -> tuple[int, int] | None:
    """Find a statement that something does not exist or is not available."""
    return _span(_NEGATIVE_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


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
    return _span(_CONFIRMATION_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def find_objection(lower_text: str) -> tuple[int, int] | None:
    """Find an objection in a user's turn; "No, that is all" is not one."""
    if _OBJECTION_EXEMPTION.match(lower_text):
        return None
    return _span(_OBJECTION_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def find_correction(lower_text: str) -> tuple[int, int] | None:
    """Find a request for another result, such as "Actually, I'd prefer ..."."""
    return _span(_CORRECTION_PATTERN.search(lower_text, 0, _MAX_READ_CHARS))


def _span(match: re.Match[str] | None) -> tuple[int, int] | None:
    return match.span() if match else None
