"""Templates: everything that comes from a run is text, escaped by the engine and by nothing else.

A text that a template prints as it is has its hidden characters written out
(`agentguard_server.viewer.text`); nothing that cannot be sent or seen gets into a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentguard.detect.facts import canonical
from agentguard.version import __version__
from agentguard_server.viewer.run import figures
from agentguard_server.viewer.run.names import named
from agentguard_server.viewer.text import plain, shown, visible

HERE = Path(__file__).parent
ASSETS = HERE / "static"


def path(text: str) -> str:
    """A text as one part of a URL's path, or one value of its query."""
    return quote(text, safe="", errors="replace")


def data(value: object, most: int) -> str:
    """Any value as JSON text, cut after ``most`` characters."""
    text = canonical(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} characters more)"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "shown": shown,
    "plain": plain,
    "path": path,
    "percent": figures.percent,
    "duration": figures.duration,
    "dollars": figures.dollars,
    "count": figures.count,
    "several": figures.several,
    "figure": figures.figure,
    "field": figures.field,
    "data": data,
    "code_title": lambda code: named(str(code)).title,
}
"""Filters of all templates."""


def _sendable(value: Any) -> Any:
    return visible(value) if type(value) is str else value


class Renderer:
    """Renders the templates of this folder; a name that a template does not get is an error."""

    def __init__(self, *, prefix: str = "") -> None:
        self.environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_sendable,
        )
        self.environment.filters.update(FILTERS)
        self.environment.globals.update(prefix=prefix, version=__version__)

    def text(self, template: str, **given: Any) -> str:
        """The text of a template."""
        return self.environment.get_template(template).render(**given)

    def page(self, template: str, *, status: int = 200, **given: Any) -> HTMLResponse:
        """A template as a response."""
        return HTMLResponse(self.text(template, **given), status_code=status)


def renderer(request: Request) -> Renderer:
    """The application's renderer."""
    found: Renderer = request.app.state.render
    return found
