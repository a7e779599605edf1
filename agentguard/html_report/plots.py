"""Plots as inline SVG without script, font or network access. Colours come from CSS classes.

The functions escape every text. For screen readers, a plot has a title and a description, and the page
contains the same numbers in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import Literal

Kind = Literal["method", "baseline", "zero_shot", "retrieval", "trained"]
_IDS = count(1)
_WIDTH = 760
_LABEL = 34  # characters that fit to the left of an interval plot


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """One line of an interval plot: a share in [0, 1], with an optional interval."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    kind: Kind = "method"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBar:
    """One bar of a bar plot: a share in [0, 1] over ``n`` runs, with its interval."""

    label: str
    value: float
    low: float
    high: float
    n: int


def render_intervals(rows: Sequence[IntervalRow], *, title: str, description: str) -> str:
    """Return marks on an axis from 0 to 100 %, one row each, with whiskers."""
    left, right, top, pitch = 250, 70, 24, 24
    height = top + pitch * len(rows) + 28
    span = _WIDTH - left - right
    body = [_render_grid_x(left, span, top - 8, height - 28)]
    for index, row in enumerate(rows):
        y, x = top + pitch * index + 4, left + span * row.value
        body.append(_render_text(left - 12, y + 4, _shorten_label(row.label), anchor="end", style=row.kind))
        if row.low is not None and row.high is not None:
            body.append(
                _render_line(left + span * row.low, y, left + span * row.high, y, f"whisker {row.kind}")
            )
        body.append(
            _render_mark(x, y, row.kind, f"{row.label}: {_format_percent(row.value)} {row.note}".strip())
        )
        body.append(_render_text(_WIDTH - right + 12, y + 4, _format_percent(row.value), style="value"))
    return _render_svg(body, height, title=title, description=description)


def render_bars(values: Sequence[ScoreBar], *, title: str, description: str, x_name: str) -> str:
    """Return vertical bars of shares with whiskers and the number of runs below."""
    left, right, top, depth = 56, 16, 16, 200
    slot = (_WIDTH - left - right) / max(1, len(values))
    height = top + depth + 64
    body = [_render_grid_y(left, _WIDTH - right, top, depth)]
    for index, bar in enumerate(values):
        middle, wide = left + slot * (index + 0.5), min(64.0, slot * 0.6)
        y = top + depth * (1 - bar.value)
        tip = f"{bar.label}: {_format_percent(bar.value)} of {bar.n}"
        body.append(
            f'<rect class="bar" x="{middle - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" '
            f'height="{depth * bar.value:.1f}"><title>{escape(tip)}</title></rect>'
        )
        body.append(
            _render_line(middle, top + depth * (1 - bar.low), middle, top + depth * (1 - bar.high), "whisker")
        )
        body.append(_render_text(middle, top + depth + 18, bar.label, anchor="middle"))
        body.append(_render_text(middle, top + depth + 34, f"n = {bar.n}", anchor="middle", style="faint"))
    body.append(
        _render_text(left + (_WIDTH - left - right) / 2, height - 8, x_name, anchor="middle", style="axis")
    )
    return _render_svg(body, height, title=title, description=description)


def render_curve(
    points: Sequence[tuple[float, float]],
    *,
    title: str,
    description: str,
    names: tuple[str, str],
    sizes: Sequence[int] = (),
    diagonal: bool = False,
) -> str:
    """Return a line through points of the unit square; with ``sizes``, the area of a mark shows its size.

    Args:
        points: (x, y) in [0, 1].
        title, description: text for screen readers.
        names: of the x axis and the y axis.
        sizes: one size per point, or empty.
        diagonal: draw the line y = x.
    """
    left, top, side = 64, 16, 300
    height = top + side + 56
    positions = [(left + side * x, top + side * (1 - y)) for x, y in points]
    body = [_render_grid_x(left, side, top, top + side), _render_grid_y(left, left + side, top, side)]
    if diagonal:
        body.append(_render_line(left, top + side, left + side, top, "diagonal"))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
    body.append(f'<polyline class="curve" points="{path}"/>')
    max_size = max(sizes, default=1) or 1
    for (x, y), (px, py), size in zip(points, positions, sizes, strict=False):
        tip = f"{names[0]} {_format_percent(x)}, {names[1]} {_format_percent(y)}, n = {size}"
        radius = 2.5 + 6 * (size / max_size) ** 0.5
        body.append(
            f'<circle class="point" cx="{px:.1f}" cy="{py:.1f}" r="{radius:.1f}">'
            f"<title>{escape(tip)}</title></circle>"
        )
    body.append(_render_text(left + side / 2, height - 8, names[0], anchor="middle", style="axis"))
    body.append(
        f'<text class="axis" text-anchor="middle" transform="translate(14 {top + side / 2}) rotate(-90)">'
        f"{escape(names[1])}</text>"
    )
    return _render_svg(body, height, title=title, description=description, width=left + side + 24)


def _render_svg(
    body: Iterable[str], height: float, *, title: str, description: str, width: float = _WIDTH
) -> str:
    ident = f"plot{next(_IDS)}"
    return (
        f'<svg role="img" aria-labelledby="{ident}t {ident}d" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{ident}t">{escape(title)}</title><desc id="{ident}d">{escape(description)}</desc>'
        f"{''.join(body)}</svg>"
    )


def _render_grid_x(left: float, span: float, top: float, bottom: float) -> str:
    parts = []
    for tick in range(0, 101, 20):
        x = left + span * tick / 100
        parts.append(_render_line(x, top, x, bottom, "grid"))
        parts.append(_render_text(x, bottom + 18, f"{tick}", anchor="middle", style="faint"))
    return "".join(parts)


def _render_grid_y(left: float, right: float, top: float, depth: float) -> str:
    parts = []
    for tick in range(0, 101, 20):
        y = top + depth * (1 - tick / 100)
        parts.append(_render_line(left, y, right, y, "grid"))
        parts.append(_render_text(left - 8, y + 4, f"{tick}", anchor="end", style="faint"))
    return "".join(parts)


def _render_mark(x: float, y: float, kind: Kind, tip: str) -> str:
    title = f"<title>{escape(tip)}</title>"
    if kind in ("method", "baseline"):
        return f'<circle class="mark {kind}" cx="{x:.1f}" cy="{y:.1f}" r="5.5">{title}</circle>'
    # Published results are diamonds: hollow without training, full with training.
    points = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"
    return f'<polygon class="mark {kind}" points="{points}">{title}</polygon>'


def _render_line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _render_text(x: float, y: float, text: str, *, anchor: str = "start", style: str = "label") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _shorten_label(label: str) -> str:
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"


def _format_percent(share: float) -> str:
    return f"{100 * share:.1f} %"
