"""Text of a run made harmless before a chat model reads it.

A server reads control tokens in user text as control tokens: a run that holds ``<end_of_turn>`` could end the
judge's turn and forge another (measured on vLLM 0.32). Here nothing that opens such a token is left, whatever
the model's own list is: every ``<`` that something could be attached to is replaced by a look-alike, and so
is the ``[`` of the bracketed tokens that Mistral and Llama 2 use. Invisible characters go first, so that no
token comes together when they are dropped.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_OPENER = re.compile(r"[<＜﹤](?=[^\s=])")
_BRACKETED = re.compile(
    r"[\[［](?=/?(?:INST|SYS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT|IMG|IMG_BREAK"
    r"|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|THINK|CALL_ID|ARGS|MULTIMODAL|CONTROL_\d+|GMASK|SOP"
    r"|EOP|CLS|SEP|MASK|PAD|UNK|BOS|EOS)[\]］])",
    re.IGNORECASE,
)
LOOKALIKE: Final = "‹"


def neutral(text: str) -> str:
    """The text with no control token, no invisible character, and ``\\n`` as its only line break."""
    text = _BREAKS.sub("\n", text)
    if not text.isascii() or not text.isprintable():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _UNSEEN)
    return _BRACKETED.sub(LOOKALIKE, _OPENER.sub(LOOKALIKE, text))


def one_line(text: str, limit: int) -> str:
    """`neutral`, on one line, of at most ``limit`` characters."""
    flat = " ".join(neutral(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
