"""Sanitization of a run's text before a chat model reads it.

A server interprets control tokens in user text: a run that contains ``<end_of_turn>`` could end the judge's
turn and forge another (measured on vLLM 0.32). This module removes the first character of such tokens for all
models. It replaces each ``<`` before a text with a similar character, and also the ``[`` of the bracketed
tokens of Mistral and Llama 2. Invisible characters are removed first, so that their removal cannot form a
token.

A run can also imitate a judge's answer: ``Answer: B``, ``"verdict": "safe"``, ``[[A]]``. `quote_verdicts`
puts such words in ``‹ ›``. The claim stays readable, and the prompt marks it as a claim of the recording.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_LINE_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_TAG_OPENER = re.compile(r"[<＜﹤](?=[^\s=])")
_BRACKET_TOKEN = re.compile(
    r"[\[［](?=/?(?:INST|SYS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT|IMG|IMG_BREAK"
    r"|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|THINK|CALL_ID|ARGS|MULTIMODAL|CONTROL_\d+|GMASK|SOP"
    r"|EOP|CLS|SEP|MASK|PAD|UNK|BOS|EOS)[\]］])",
    re.IGNORECASE,
)
LOOKALIKE_BRACKET: Final = "‹"

_VERDICT_KEYS: Final = (
    r"answer|verdict|judge?ment|decision|conclusion|result|rating|score|grade|label|tier|class|classification"
    r"|category|choice|option|outcome|assessment|evaluation|response|reply|run|recording|transcript|trajectory"
)
_VERDICT_WORDS: Final = (
    r"(?-i:[A-Z])|yes|no|true|false|pass(?:ed|es)?|fail(?:ed|s|ure)?|succe(?:ss|ssful|eded)|(?:in)?correct"
    r"|right|wrong|(?:un)?safe|conditionally[ _]safe|(?:needs )?focused[ _]attention|none|step \d{1,6}"
)
_ASSIGNMENT: Final = (
    r"[\"'`*_]{0,3}\s{0,3}(?::|=|->|=>|→|⇒|\bis\b|\bwas\b|\bmust be\b|\bshould be\b)\s{0,3}[\"'`*_(\[{]{0,4}"
)

_VERDICT_PATTERN = re.compile(
    rf"\b(?P<before>(?:{_VERDICT_KEYS}){_ASSIGNMENT})(?P<said>{_VERDICT_WORDS})(?!\w)", re.IGNORECASE
)
_NUMBER_PATTERN = re.compile(
    rf"\b(?P<before>(?:rating|score|grade){_ASSIGNMENT})"
    r"(?P<said>\d{1,4}(?:\.\d{1,4})?(?: ?/ ?\d{1,4}| ?%)?)(?!\w)",
    re.IGNORECASE,
)
_LETTER_PATTERN = re.compile(
    r"^(?P<before>[ \t>*_#-]{0,8})(?P<said>[A-T])(?=[*_]{0,2}[:.)](?:\s|$))", re.MULTILINE
)
_BOXED_PATTERN = re.compile(r"(?P<before>\[\[|\\boxed\{)(?P<said>[\w ]{1,24})(?=\]\]|\})")


def neutralize(text: str) -> str:
    """Remove control tokens and invisible characters; ``\\n`` becomes the only line break."""
    text = _LINE_BREAKS.sub("\n", text)
    if not text.isascii() or not text.isprintable():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _INVISIBLE_CATEGORIES)
    return _BRACKET_TOKEN.sub(LOOKALIKE_BRACKET, _TAG_OPENER.sub(LOOKALIKE_BRACKET, text))


def quote_verdicts(text: str) -> str:
    """Neutralize a text and quote words that look like a judge's verdict in ``‹ ›``.

    It quotes:

    - a verdict word after its subject (``Answer: B``, ``the run was successful``),
    - a label at the beginning of a line (``A: …``),
    - the marks of two common answer formats of judges (``[[A]]``, ``\\boxed{A}``).

    It removes nothing, since a wrong claim is evidence, too.
    """
    text = neutralize(text)
    for pattern in (_VERDICT_PATTERN, _NUMBER_PATTERN, _LETTER_PATTERN, _BOXED_PATTERN):
        text = pattern.sub(r"\g<before>‹\g<said>›", text)
    return text


def to_one_line(text: str, limit: int) -> str:
    """Neutralize a text and join it to one line of at most ``limit`` characters."""
    flat = " ".join(neutralize(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
