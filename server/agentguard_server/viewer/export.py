"""A run as one HTML file: styles inlined, no script, nothing loaded; whole, with its branches and marks."""

from __future__ import annotations

from dataclasses import replace

from agentguard.store.store import Store
from agentguard.trajectory.model import Record
from agentguard_server.viewer.data.run_data import RunData, StoredDiagnosis
from agentguard_server.viewer.renderer import ASSETS_FOLDER, Renderer
from agentguard_server.viewer.run.finding_table import ACTION_THRESHOLD
from agentguard_server.viewer.run.links import FileLinks
from agentguard_server.viewer.run.page_model import RunPageModel
from agentguard_server.viewer.run.text_view import FoldOptions

_STYLES = ("base.css", "run.css", "run_file.css")
_NO_FOLD = 2**62


def render_html(data: RunData, renderer: Renderer | None = None) -> str:
    """The file's text. Long texts are folded in it, never cut."""
    made = renderer or Renderer()
    view = RunPageModel.from_run_data(data, fold=FoldOptions(max_chars=_NO_FOLD))
    links = FileLinks(branches=view.branches)
    return made.render_text(
        "run_export.html",
        view=view,
        run=data.run,
        links=links,
        s=view.strip(view.branches.current, None),
        styles="\n".join((ASSETS_FOLDER / name).read_text(encoding="utf-8") for name in _STYLES),
        line=view.branches.current,
        forks=view.group_forks(view.branches.current),
        turns=view.build_turns(view.branches.current, 0, len(view.branches.current.steps)),
        left=[
            (
                line,
                view.build_turns(
                    line, line.fork_step, len(line.steps), prefix=links.build_id_prefix(line.id)
                ),
            )
            for line in view.branches.abandoned
        ],
        threshold=ACTION_THRESHOLD,
    )


class HtmlExporter:
    """Writes ``html`` for ``agentguard export``."""

    def of_record(self, record: Record) -> bytes:
        """A run of a file, diagnosed now."""
        from agentguard.guard import diagnose

        return _bytes(RunData.from_run(record.trajectory, diagnose(record.trajectory)))

    def of_stored(self, store: Store, run_id: str, *, tenant: str = "") -> bytes | None:
        """A run of a store with all that is known of it; diagnosed now where nobody has."""
        bundle = RunData.load(store, run_id, tenant)
        if bundle is not None and not bundle.diagnoses:
            from agentguard.guard import diagnose

            known = StoredDiagnosis(id="", created_at=0.0, diagnosis=diagnose(bundle.run))
            bundle = replace(bundle, diagnoses=(known,), findings=known.diagnosis.findings)
        return None if bundle is None else _bytes(bundle)


def _bytes(bundle: RunData) -> bytes:
    return render_html(bundle).encode()


HTML = HtmlExporter()
"""The exporter, as the entry point names it."""
