"""Word classes that indicate the activity of a turn, independent of framework and topic.

Each class is a short list of stems of plain English words. None is the name of an agent or a benchmark, and
none is a sentence.
"""

from __future__ import annotations

import re
from typing import Final

# Name, meaning and pattern. The sentences of error schemata contain the meanings: stored schemata and their
# vectors depend on the exact text.
_CLASSES: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "assume",
        "assuming, simulating, placeholders, examples",
        r"assum\w*|hypothet\w*|simulat\w*|mock\w*|placeholder\w*|dummy|pretend\w*|fictional|fictitious"
        r"|illustrat\w*|suppos\w*|example|sample|imagin\w*|your_\w+|example_\w+",
    ),
    (
        "hedge",
        "uncertainty",
        r"maybe|might|likely|probabl\w*|possibl\w*|appears?|seems?|approximat\w*|presum\w*|estimat\w*"
        r"|roughly|perhaps|guess\w*|potential\w*",
    ),
    (
        "failure",
        "errors and what could not be done",
        r"errors?|fail\w*|unable|cannot|can't|couldn't|exceptions?|traceback|issues?|unavailable|denied"
        r"|forbidden|invalid|timeouts?|missing|unsuccessful\w*|problems?|limitations?|inaccessible"
        r"|unfortunately|\w+error|unsupported|difficult\w*",
    ),
    (
        "correct",
        "correcting something said or done before",
        r"corrected|correcting|corrections?|fix\w*|revis\w*|instead|mistakes?|wrong|incorrect\w*|oversights?"
        r"|overlook\w*|apolog\w*|sorry|misunder\w*|adjust\w*|actually|discrepan\w*|inaccura\w*|rectify"
        r"|however|misinter\w*",
    ),
    (
        "verify",
        "checking and confirming",
        r"verif\w*|confirm\w*|recheck\w*|valid\w*|check\w*|ensur\w*|cross-\w+|double-\w+|review\w*",
    ),
    (
        "conclude",
        "concluding and ending",
        r"conclu\w*|final\w*|therefore|thus|summar\w*|terminat\w*|complet\w*|consensus|agree\w*|satisf\w*"
        r"|answer",
    ),
    (
        "plan",
        "planning and sequence",
        r"plan\w*|steps?|first|next|then|proceed\w*|need|needs|will|should|let's|going|begin|start",
    ),
    ("manual", "doing by hand what a tool would do", r"manual\w*"),
    ("promise", "announcing work for later", r"shortly|moment|hold|wait|soon|once|await\w*"),
    (
        "know",
        "general knowledge instead of a source",
        r"knowledge|known|historical\w*|widely|common\w*|typical\w*|general\w*|famous\w*|popular",
    ),
    (
        "given",
        "what others gave",
        r"provided|given|according|based|earlier|previous\w*|above|initial\w*",
    ),
    ("request", "request", r"please|could|would|you|kindly"),
    (
        "source",
        "sources outside",
        r"search\w*|website\w*|pages?|sources?|official\w*|url|link\w*|web|browser?|api",
    ),
    (
        "again",
        "repeating and being stuck",
        r"loop\w*|repeat\w*|stuck|again|retry\w*|stall\w*|re-\w+|alternativ\w*|different|another",
    ),
    (
        "neg",
        "negation and absence",
        r"no|not|none|nothing|empty|without|never|don't|doesn't|didn't|isn't|wasn't|null",
    ),
    ("self", "first person singular", r"i|i'll|i've|my|i'm"),
    ("we", "first person plural", r"we|our|let's|us"),
    (
        "calc",
        "calculating",
        r"calculat\w*|comput\w*|formula|sum|total|count\w*|average|percent\w*|equation",
    ),
    (
        "act",
        "acting on the outside",
        r"execut\w*|run|running|perform\w*|scrap\w*|fetch\w*|extract\w*|access\w*|obtain\w*|locat\w*"
        r"|download\w*|retriev\w*",
    ),
    ("begin", "beginning", r"start\w*|begin\w*|first|initial\w*|outline"),
    ("analyse", "analysing", r"analy\w*|inspect\w*|examin\w*|reason\w*|interpret\w*|relevant"),
    ("ack", "taking note of an outcome", r"looks|seems|appears|indicates?|returned|encountered|happened"),
    (
        "team",
        "speaking to the others",
        r"everyone|group|team|experts?|agrees?|agreement|thank|thanks|great|yes|help|good",
    ),
    (
        "affirm",
        "affirming that something is right",
        r"correct|correctly|correctness|accurate|accurately|thorough\w*|properly|successful\w*",
    ),
    ("oblige", "obligation and exactness", r"should|must|any|only|without|exact|appropriate"),
    ("now", "the present", r"now|here's|here|current\w*|let's|i'll"),
    (
        "refer",
        "reference to other parts of the text",
        r"above|below|following|mentioned|given|these|those|its|their",
    ),
    (
        "found",
        "presenting what was found",
        r"found|identified|retrieved|obtained|results?|following|list|show\w*|determined",
    ),
)

WORD_CLASSES: Final = tuple((name, meaning) for name, meaning, _ in _CLASSES)
CLASS_NAMES: Final = tuple(name for name, _ in WORD_CLASSES)
CLASS_INDEX: Final = {name: place for place, name in enumerate(CLASS_NAMES)}
_PATTERNS: Final = tuple(re.compile(rf"(?:{pattern})\Z") for _, _, pattern in _CLASSES)


_CLASS_CACHE: dict[str, tuple[int, ...]] = {}
_MAX_CACHED_WORDS: Final = 65_536


def classify_word(word: str) -> tuple[int, ...]:
    """Return the positions in `CLASS_NAMES` of a lower-case word's classes; most words have no class."""
    classes = _CLASS_CACHE.get(word)
    if classes is None:
        if len(_CLASS_CACHE) >= _MAX_CACHED_WORDS:  # the number of distinct words in runs is unbounded
            _CLASS_CACHE.clear()
        classes = tuple(index for index, pattern in enumerate(_PATTERNS) if pattern.match(word))
        _CLASS_CACHE[word] = classes
    return classes
