"""Links to steps and quotes, in the page and in the exported file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlencode

from agentguard_server.viewer.run.branches import CURRENT_BRANCH, BranchViews
from agentguard_server.viewer.run.highlights import Quote

STEPS_PER_PAGE = 100
"""Number of steps in a fragment of the page."""


class Links(Protocol):
    """Builder of links."""

    def step(self, branch_id: str, step: int) -> str:
        """Return a link to a step."""
        ...

    def quote(self, quote: Quote) -> str:
        """Return a link to a quote."""
        ...


def build_run_url(prefix: str, run_id: str) -> str:
    """Return the URL of a run's page."""
    return f"{prefix}/runs/{quote(run_id, safe='', errors='replace')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLinks:
    """Links within the viewer.

    Attributes:
        base: URL of the page of the run.
        branch_id: branch that the page shows.
        begin, end: range of the steps on the page.
    """

    base: str
    branch_id: str = CURRENT_BRANCH
    begin: int = 0
    end: int = 0

    def step(self, branch_id: str, step: int) -> str:
        """Return an anchor if the page contains the step, else the URL of a page with it."""
        return self._build_url(branch_id, step, f"step-{step}")

    def quote(self, quote: Quote) -> str:
        """Return a link to a quote."""
        return self._build_url(quote.branch_id, quote.step, quote.anchor)

    def _build_url(self, branch_id: str, step: int, anchor: str) -> str:
        if branch_id == self.branch_id and self.begin <= step < self.end:
            return f"#{anchor}"
        query = {"step": str(step)} | ({"line": branch_id} if branch_id else {})
        return f"{self.base}?{urlencode(query, errors='replace')}#{anchor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLinks:
    """Links within an exported file, which contains all branches."""

    branches: BranchViews

    def step(self, branch_id: str, step: int) -> str:
        """Return a link to a step."""
        return f"#{self.build_id_prefix(branch_id)}step-{step}"

    def quote(self, quote: Quote) -> str:
        """Return a link to a quote."""
        return f"#{quote.anchor}"

    def build_id_prefix(self, branch_id: str) -> str:
        """Return the prefix of the element ids of a branch; empty for the current branch."""
        view = self.branches.by_id.get(branch_id)
        return f"b{view.number}-" if view is not None and view.number else ""
