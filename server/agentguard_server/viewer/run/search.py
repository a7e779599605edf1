"""Search in the texts, calls and results of one run, on all branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentguard.detect._text import to_lower
from agentguard_server.viewer.run.branches import BranchView, BranchViews

MAX_HITS = 200
_BEFORE, _AFTER = 60, 160
"""Characters of the excerpt before and after a match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """Field of a step with a match.

    Attributes:
        branch, step, agent, field: position of the match.
        before, match, after: excerpt around the first match.
        more: number of further matches in the field.
    """

    branch: BranchView
    step: int
    agent: str
    field: str
    before: str
    match: str
    after: str
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Hits of a search; ``is_truncated`` if there are more than `MAX_HITS`."""

    query: str
    hits: tuple[SearchHit, ...]
    is_truncated: bool


def search_run(branches: BranchViews, query: str) -> SearchResult:
    """Search for a text, ignoring case. A field with several matches is one hit."""
    needle = to_lower(query.strip())
    if not needle:
        return SearchResult(query=query, hits=(), is_truncated=False)
    hits: list[SearchHit] = []
    for hit in _find_hits(branches, needle):
        if len(hits) == MAX_HITS:
            return SearchResult(query=query, hits=tuple(hits), is_truncated=True)
        hits.append(hit)
    return SearchResult(query=query, hits=tuple(hits), is_truncated=False)


def _find_hits(branches: BranchViews, needle: str) -> Iterator[SearchHit]:
    for branch in branches:
        for place, step in enumerate(branch.own_steps, branch.fork_step):
            texts = [
                ("agent", step.agent),
                *((f"call of {call.name}", call.name) for call in step.tool_calls),
            ]
            for field, text in (*step.texts(), *texts):
                lower_text = to_lower(text)
                position = lower_text.find(needle)
                if position >= 0:
                    end = position + len(needle)
                    yield SearchHit(
                        branch=branch,
                        step=place,
                        agent=step.agent,
                        field=field,
                        before=("…" if position > _BEFORE else "")
                        + text[max(0, position - _BEFORE) : position],
                        match=text[position:end],
                        after=text[end : end + _AFTER] + ("…" if len(text) > end + _AFTER else ""),
                        more=lower_text.count(needle) - 1,
                    )
