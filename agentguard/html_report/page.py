"""HTML building blocks of a report: one file with inline style, light and dark mode, no external resource."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_HERE = Path(__file__).parent


def read_parts_style() -> str:
    """Return the style sheet of the parts, for pages with another frame."""
    return (_HERE / "parts.css").read_text(encoding="utf-8")


def render_page(title: str, body: Iterable[str]) -> str:
    """Return a whole document with a content security policy that forbids scripts and fetches."""
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
    """Return a heading of plain text."""
    return f"<h{level}>{escape(text)}</h{level}>"


def render_paragraph(text: str, style: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"


def render_figure(drawing: str, caption: str) -> str:
    """Return a drawing (trusted markup) with a plain-text caption, in a scrollable region."""
    label = escape(caption.partition(":")[0])
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{label}">{drawing}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def render_facts(pairs: Sequence[tuple[str, str, str]]) -> str:
    """Return a row of figures: name, value and note."""
    items = (
        f"<li>{escape(name)}<b>{escape(value)}</b><small>{escape(note)}</small></li>"
        for name, value, note in pairs
    )
    return f'<ul class="facts">{"".join(items)}</ul>'


def render_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str | tuple[str, str]]]) -> str:
    """Return a table of plain text, scrollable by keyboard; a cell may be ``(text, class)``."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def render_details(summary: str, inner: str) -> str:
    """Return markup that the reader can expand by its summary."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def _render_cell(value: str | tuple[str, str]) -> str:
    text, style = value if isinstance(value, tuple) else (value, "")
    return f'<td class="{style}">{escape(text)}</td>' if style else f"<td>{escape(text)}</td>"


def format_percent(share: float | None, digits: int = 1) -> str:
    """Return a share in per cent, or a dash for None or NaN."""
    return "–" if share is None or share != share else f"{100 * share:.{digits}f}"
