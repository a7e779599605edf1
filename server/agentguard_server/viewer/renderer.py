"""Rendering of templates and JSON; the template engine escapes all texts of runs.

Hidden characters in printed texts become visible (`agentguard_server.viewer.escaping`), so that pages contain
only characters that can be encoded and seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from agentguard.detect.step_facts import canonicalize_json
from agentguard.localize.step_support import rate_summary
from agentguard.quantity import format_quantity
from agentguard.trajectory.safe_json import normalize_json
from agentguard.version import __version__
from agentguard_server.viewer import formatting
from agentguard_server.viewer.escaping import (
    escape_text,
    reveal_hidden_characters,
    to_excerpt,
    to_single_line,
)
from agentguard_server.viewer.formatting import find_code_title

VIEWER_FOLDER = Path(__file__).parent
ASSETS_FOLDER = VIEWER_FOLDER / "static"


def quote_path(text: str) -> str:
    """Quote a text as one segment of a URL path, or one value of a query."""
    return quote(text, safe="", errors="replace")


def format_json(value: object, max_chars: int) -> str:
    """Return a value as JSON text, cut after ``max_chars`` characters."""
    text = canonicalize_json(value)
    return (
        text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text) - max_chars:,} characters more)"
    )


FILTERS: Mapping[str, Callable[..., Any]] = {
    "shown": escape_text,
    "plain": to_single_line,
    "excerpt": to_excerpt,
    "path": quote_path,
    "percent": formatting.format_percent,
    "duration": formatting.format_duration,
    "dollars": formatting.format_dollars,
    "count": formatting.format_count,
    "several": format_quantity,
    "figure": formatting.format_number,
    "field": formatting.format_field_name,
    "data": format_json,
    "step_support": rate_summary,
    "code_title": lambda code: find_code_title(str(code)).title,
}
"""Filters available in all templates."""


def _reveal_hidden(value: Any) -> Any:
    return reveal_hidden_characters(value) if type(value) is str else value


class Renderer:
    """Renderer of the templates in this folder; an undefined name in a template is an error."""

    def __init__(self, *, prefix: str = "") -> None:
        self.environment = Environment(
            loader=FileSystemLoader(VIEWER_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_reveal_hidden,
        )
        self.environment.filters.update(FILTERS)
        self.environment.globals.update(prefix=prefix, version=__version__)

    def render_text(self, template: str, **given: Any) -> str:
        """Render a template as text."""
        return self.environment.get_template(template).render(**given)

    def render_page(self, template: str, *, status: int = 200, **given: Any) -> HTMLResponse:
        """Render a template as a response."""
        return HTMLResponse(self.render_text(template, **given), status_code=status)


def get_renderer(request: Request) -> Renderer:
    """Return the renderer of the application."""
    renderer: Renderer = request.app.state.render
    return renderer


def render_json(data: Any, *, status: int = 200) -> Response:
    """Return a JSON response; values that JSON cannot represent are written as text."""
    return Response(orjson.dumps(normalize_json(data)), status_code=status, media_type="application/json")
