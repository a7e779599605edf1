"""Templates: everything that comes from a run is text, escaped by the engine and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentguard.version import __version__

HERE = Path(__file__).parent
ASSETS = HERE / "static"


class Renderer:
    """Renders the templates of this folder; a name that a template does not get is an error."""

    def __init__(self, *, prefix: str = "") -> None:
        self.environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
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
