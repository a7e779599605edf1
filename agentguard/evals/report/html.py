"""The frame of an HTML report: one file, its own style, light and dark, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_HERE = Path(__file__).parent


def read_parts_style() -> str:
    """The style sheet of the parts: for a page that holds some of them and has a frame of its own."""
    return (_HERE / "parts.css").read_text(encoding="utf-8")


def render_page(title: str, body: Iterable[str]) -> str:
    """A whole document; a policy in its head forbids scripts and every fetch, should any slip through."""
    style = (_HERE / "style.css").read_text(encoding="utf-8") + read_parts_style()
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def render_heading(level: int, text: str) -> str:
    """A heading of plain text."""
    return f"<h{level}>{escape(text)}</h{level}>"


def render_paragraph(text: str, style: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"


def render_figure(drawing: str, caption: str) -> str:
    """A drawing (trusted markup) with a caption of plain text; it scrolls where it is too wide to be read."""
    label = escape(caption.partition(":")[0])
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{label}">{drawing}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def render_facts(pairs: Sequence[tuple[str, str, str]]) -> str:
    """A row of figures: name, value, and what to know about it."""
    items = (
        f"<li>{escape(name)}<b>{escape(value)}</b><small>{escape(note)}</small></li>"
        for name, value, note in pairs
    )
    return f'<ul class="facts">{"".join(items)}</ul>'


def render_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str | tuple[str, str]]]) -> str:
    """A table of plain text; a cell may be ``(text, class)``. It scrolls by itself and by keyboard."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def render_details(summary: str, inner: str) -> str:
    """Markup that shows when its summary is opened."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def _render_cell(value: str | tuple[str, str]) -> str:
    text, style = value if isinstance(value, tuple) else (value, "")
    return f'<td class="{style}">{escape(text)}</td>' if style else f"<td>{escape(text)}</td>"


def format_percent(share: float | None, digits: int = 1) -> str:
    """A share as a number of per cent; a dash where there is none."""
    return "–" if share is None or share != share else f"{100 * share:.{digits}f}"
