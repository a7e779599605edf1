"""Where things are: links to steps and quotes, in the page and in the exported file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlencode

from agentguard_server.viewer.run.lines import LIVE, Lines
from agentguard_server.viewer.run.marks import Quote

CHUNK = 100
"""Steps a fragment has."""


class Links(Protocol):
    """Makes links."""

    def step(self, line: str, step: int) -> str:
        """To a step."""
        ...

    def quote(self, quote: Quote) -> str:
        """To a quote."""
        ...


def base_of(prefix: str, run_id: str) -> str:
    """The address of a run's page."""
    return f"{prefix}/runs/{quote(run_id, safe='', errors='replace')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLinks:
    """Links within the viewer: what is in the page already is an anchor, all else a page of its own."""

    base: str
    line: str = LIVE
    begin: int = 0
    end: int = 0

    def step(self, line: str, step: int) -> str:
        """To a step, whichever view is open."""
        return self._to(line, step, f"step-{step}")

    def quote(self, quote: Quote) -> str:
        """To a quote."""
        return self._to(quote.line, quote.step, quote.anchor)

    def _to(self, line: str, step: int, anchor: str) -> str:
        if line == self.line and self.begin <= step < self.end:
            return f"#{anchor}"
        query = {"step": str(step)} | ({"line": line} if line else {})
        return f"{self.base}?{urlencode(query, errors='replace')}#{anchor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLinks:
    """Links within one file that holds all lines."""

    lines: Lines

    def step(self, line: str, step: int) -> str:
        """To a step."""
        return f"#{self.prefix(line)}step-{step}"

    def quote(self, quote: Quote) -> str:
        """To a quote."""
        return f"#{quote.anchor}"

    def prefix(self, line: str) -> str:
        """What goes before the ids of a line's steps."""
        known = self.lines.by_id.get(line)
        return f"b{known.number}-" if known is not None and known.number else ""
