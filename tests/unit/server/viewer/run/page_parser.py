"""Parser of a page: its elements, attributes and text; and the expected form of a text in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from agentguard_server.viewer.escaping import reveal_hidden_characters

VOID = {"meta", "link", "input", "br", "rect", "line", "circle", "path"}
_SECTIONS = "html head title script style body main div section header nav aside article form dialog svg g"
_BLOCKS = (
    "p h1 h2 h3 ul ol li dl dt dd table thead tbody tr th td details summary label select optgroup option"
)
_WORDS = "a span b i q del ins kbd code mark bdi meter text button textarea"
ELEMENTS = VOID | set(f"{_SECTIONS} {_BLOCKS} {_WORDS}".split())
"""All elements of our templates; the content of a run must not add another."""


class Page(HTMLParser):
    """Elements, attributes and text of a page. An unclosed tag is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.said: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert len(given) == len(attrs), f"<{tag}> has an attribute twice: {attrs}"
        self.elements.append((tag, given))
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1:] == [tag], f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if "summary" not in self._open:
            self.said.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    @property
    def unfolded(self) -> str:
        """Return the text without the labels of folds."""
        return "".join(self.said)

    def links(self) -> list[str]:
        return [str(given["href"]) for tag, given in self.elements if tag == "a" and "href" in given]


_CODE_POINT = re.compile(r"‹(U\+[0-9A-F]{4,6})›")


def squashed(text: str) -> str:
    """Return a text without white space and quotation marks, which the JSON layout may move or omit."""
    return "".join(text.split()).replace('"', "")


def as_shown(text: str) -> str:
    """Return a text of a run as it appears in the page, squashed."""
    return squashed(_CODE_POINT.sub(r"\1", reveal_hidden_characters(text)))
