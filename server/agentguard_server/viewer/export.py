"""A run as one HTML file: styles inlined, no script, nothing loaded; whole, with its branches and marks."""

from __future__ import annotations

from dataclasses import replace

from agentguard.store.store import Store
from agentguard.trajectory.model import Record
from agentguard_server.viewer.bundle import Bundle, Known
from agentguard_server.viewer.render import ASSETS, Renderer
from agentguard_server.viewer.run.links import FileLinks
from agentguard_server.viewer.run.passage import Fold
from agentguard_server.viewer.run.scores import THRESHOLD
from agentguard_server.viewer.run.view import View

_STYLES = ("base.css", "run.css", "run_file.css")
_WHOLE = 2**62


def html_of(bundle: Bundle, renderer: Renderer | None = None) -> str:
    """The file's text. Long texts are folded in it, never cut."""
    made = renderer or Renderer()
    view = View.of(bundle, fold=Fold(most=_WHOLE))
    links = FileLinks(lines=view.lines)
    return made.text(
        "run_export.html",
        view=view,
        run=bundle.run,
        links=links,
        s=view.strip(view.lines.live, None),
        styles="\n".join((ASSETS / name).read_text(encoding="utf-8") for name in _STYLES),
        line=view.lines.live,
        forks=view.forks(view.lines.live),
        turns=view.turns(view.lines.live, 0, len(view.lines.live.steps)),
        left=[
            (line, view.turns(line, line.fork, len(line.steps), prefix=links.prefix(line.id)))
            for line in view.lines.branches
        ],
        threshold=THRESHOLD,
    )


class HtmlExporter:
    """Writes ``html`` for ``agentguard export``."""

    def of_record(self, record: Record) -> bytes:
        """A run of a file, diagnosed now."""
        from agentguard.guard import diagnose

        return _bytes(Bundle.of(record.trajectory, diagnose(record.trajectory)))

    def of_stored(self, store: Store, run_id: str, *, tenant: str = "") -> bytes | None:
        """A run of a store with all that is known of it; diagnosed now where nobody has."""
        bundle = Bundle.load(store, run_id, tenant)
        if bundle is not None and not bundle.diagnoses:
            from agentguard.guard import diagnose

            known = Known(id="", made_at=0.0, diagnosis=diagnose(bundle.run))
            bundle = replace(bundle, diagnoses=(known,), findings=known.diagnosis.findings)
        return None if bundle is None else _bytes(bundle)


def _bytes(bundle: Bundle) -> bytes:
    return html_of(bundle).encode()


HTML = HtmlExporter()
"""The exporter, as the entry point names it."""
