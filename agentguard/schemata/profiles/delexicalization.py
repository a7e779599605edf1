"""Delexicalisation: removal of the topic from a text, so that only the manner of work remains.

The result contains only words of a closed list (`agentguard.schemata.profiles.vocabulary`). The name of its
class, or a gap, replaces any other word. So no number, name, quotation or subject can remain. Names of
agents and tools are removed even if they consist of words of the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from agentguard.schemata.profiles.vocabulary import NUMBER_WORDS, WORDS
from agentguard.trajectory.model import Trajectory

GAP_MARKER: Final = "…"
"""Mark of an omission."""

MAX_CHARS: Final = 20_000
"""Maximum number of characters that are read from a text."""

_FILE_ENDINGS = (
    r"(?:pdf|csv|tsv|xlsx?|docx?|pptx?|txt|md|json|ya?ml|xml|html?|py|js|png|jpe?g|gif|mp[34]|wav|zip)"
)
_TOKEN_PATTERN = re.compile(
    r"(?P<word>[^\W\d_]++(?:['’-][^\W\d_]++)*+(?![\w(@]|[._]\w|://))"
    r"|(?P<stop>[.!?:;]++|(?:\A|\n)[ \t]*+(?:\d{1,3}[.)](?!\w)|[-*•#]+)|\n)"
    r"|(?P<number>\d[\w.,:/%]*+)"
    r"|(?P<code>```.*?(?:```|\Z))"
    r"|(?P<quote>\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”|`[^`\n]{1,200}`)"
    r"|(?P<url>(?:https?://|www\.)\S{1,2000}+|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})"
    rf"|(?P<file>[\w.-]{{1,100}}\.{_FILE_ENDINGS}\b|(?:/[\w.-]{{1,100}}){{2,20}})"
    r"|(?P<identifier>(?=[^\W\d]|_)\w++(?:[._-]\w++){0,20}+(?:\(\)?)?)",
    re.DOTALL,
)
_TOKEN_CLASSES: Final = {
    "code": "some code", "url": "an address", "file": "a file", "quote": "a quotation",
    "identifier": "an identifier", "number": "a number", "name": "a name",
}  # fmt: skip
CLASS_WORDS: Final = frozenset(word for phrase in _TOKEN_CLASSES.values() for word in phrase.split())
_ALLOWED_WORDS: Final = WORDS | CLASS_WORDS
_AMBIGUOUS_WORDS: Final = frozenset({"may", "will", "us", "it", "he", "or", "in", "so", "mark", "frank"})
"""Words of the list that are names (of a month, a person, a state) if they are capitalised."""

_SENTENCE_END: Final = "."
_MAX_CACHED_WORDS: Final = 20_000
_NAME_PART_PATTERN = re.compile(r"[^\W_]+")


class Delexicalizer:
    """Delexicaliser of the texts of one run.

    Args:
        run: run whose agent and tool names are removed.
    """

    def __init__(self, run: Trajectory) -> None:
        names = [step.agent for step in run.steps] + [tool.name for tool in run.tools]
        names += [call.name for step in run.steps for call in step.tool_calls]
        names += [
            observation.tool for step in run.steps for observation in step.observations if observation.tool
        ]
        names += [name for name in run.system_prompts if name]
        self._names = frozenset(name.lower() for name in names if name)
        self._phrases = _group_phrases(self._names)
        self._name_parts: dict[str, str] = {}

    def __call__(self, text: str, limit: int = MAX_CHARS) -> str:
        """Return the text without its topic, in lower case.

        Every word of it is in `vocabulary.WORDS` or `CLASS_WORDS`.

        Args:
            text: the text.
            limit: maximum of characters; of a longer text, two thirds head and one third tail are read.
        """
        if len(text) > limit:
            text = f"{text[: limit * 2 // 3]}\n{GAP_MARKER}\n{text[-(limit // 3) :]}"
        tokens: list[str] = []
        is_sentence_start = True
        for match in _TOKEN_PATTERN.finditer(text):
            kind = match.lastgroup
            if kind == "stop":
                _close_sentence(tokens)
                is_sentence_start = True
                continue
            token = (
                self._replace_word(match[0], is_sentence_start)
                if kind == "word"
                else self._replace_token(match[0], str(kind))
            )
            is_sentence_start = False
            if token == GAP_MARKER:
                if tokens and tokens[-1] != GAP_MARKER:
                    tokens.append(GAP_MARKER)
            elif " " in token:
                _append_token(tokens, token)
            else:
                tokens.append(token)
        return " ".join(self._remove_names(" ".join(tokens).split())).replace(
            f" {_SENTENCE_END}", _SENTENCE_END
        )

    def _replace_word(self, word: str, opens: bool) -> str:
        if opens:
            return self._classify_word(word, opens)
        replacement = self._name_parts.get(word)
        if replacement is None:
            replacement = self._classify_word(word, opens)
            if len(self._name_parts) < _MAX_CACHED_WORDS:
                self._name_parts[word] = replacement
        return replacement

    def _classify_word(self, word: str, opens: bool) -> str:
        low = word.lower().replace("’", "'")
        if low in self._names:
            return _TOKEN_CLASSES["name"]
        if low in NUMBER_WORDS:
            return _TOKEN_CLASSES["number"]
        if low in WORDS:
            capital = not opens and low in _AMBIGUOUS_WORDS and word != low and not word.isupper()
            return GAP_MARKER if capital else low
        return _TOKEN_CLASSES["name"] if word[0].isupper() and not opens else GAP_MARKER

    def _replace_token(self, token: str, kind: str) -> str:
        low = token.lower().rstrip("(")
        return _TOKEN_CLASSES["name" if low in self._names else kind]

    def _remove_names(self, tokens: Sequence[str]) -> Sequence[str]:
        """Replace each agent or tool name that consists of kept words by a gap."""
        if not self._phrases:
            return tokens
        result, position = [], 0
        while position < len(tokens):
            size = max(
                (n for n, phrases in self._phrases if tuple(tokens[position : position + n]) in phrases),
                default=0,
            )
            if not size:
                result.append(tokens[position])
            elif not result or result[-1] != GAP_MARKER:
                result.append(GAP_MARKER)
            position += size or 1
        return result


def delexicalize(text: str, run: Trajectory) -> str:
    """Remove the topic from one text; for several texts of a run, use `Delexicalizer`."""
    return Delexicalizer(run)(text)


def _group_phrases(names: Iterable[str]) -> tuple[tuple[int, frozenset[tuple[str, ...]]], ...]:
    """Return the names that consist of words of the list, by number of words; the longest first."""
    spellings = {tuple(_NAME_PART_PATTERN.findall(name)) for name in names}
    spellings |= {tuple(name.split()) for name in names}
    phrases = {words for words in spellings if words and all(word in _ALLOWED_WORDS for word in words)}
    sizes = sorted({len(words) for words in phrases}, reverse=True)
    return tuple((n, frozenset(words for words in phrases if len(words) == n)) for n in sizes)


def _append_token(tokens: list[str], token: str) -> None:
    """Append a token; consecutive tokens of one class are merged."""
    before = next((one for one in reversed(tokens[-2:]) if one != GAP_MARKER), None)
    if before != token:
        tokens.append(token)


def _close_sentence(tokens: list[str]) -> None:
    if tokens and tokens[-1] == GAP_MARKER:
        tokens.pop()
    if tokens and tokens[-1] != _SENTENCE_END:
        tokens.append(_SENTENCE_END)
