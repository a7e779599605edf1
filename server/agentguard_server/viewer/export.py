"""Export of a run as one HTML file with inlined styles, without scripts and external resources."""

from __future__ import annotations

from dataclasses import replace

from agentguard.store.store import Store
from agentguard.trajectory.model import Record
from agentguard_server.viewer.data.run_data import RunData, StoredDiagnosis
from agentguard_server.viewer.renderer import ASSETS_FOLDER, Renderer
from agentguard_server.viewer.run.finding_table import ACTION_THRESHOLD
from agentguard_server.viewer.run.folded_text import FoldOptions
from agentguard_server.viewer.run.links import FileLinks
from agentguard_server.viewer.run.page_model import RunPageModel

_STYLES = ("base.css", "run.css", "run_file.css")
_NO_FOLD = 2**62


def render_html(data: RunData, renderer: Renderer | None = None) -> str:
    """Return the HTML of a run with its branches and highlights. Long texts are folded, not cut."""
    html_renderer = renderer or Renderer()
    view = RunPageModel.from_run_data(data, fold=FoldOptions(max_chars=_NO_FOLD))
    links = FileLinks(branches=view.branches)
    return html_renderer.render_text(
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
    """Exporter ``html`` of ``agentguard convert``."""

    def of_record(self, record: Record) -> bytes:
        """Export a run of a file, diagnosed now."""
        from agentguard.guard import diagnose

        return _bytes(RunData.from_run(record.trajectory, diagnose(record.trajectory)))

    def of_stored(self, store: Store, run_id: str, *, tenant: str = "") -> bytes | None:
        """Export a run of a store with all its data; diagnose it if it has no diagnosis."""
        bundle = RunData.load(store, run_id, tenant)
        if bundle is not None and not bundle.diagnoses:
            from agentguard.guard import diagnose

            stored_diagnosis = StoredDiagnosis(id="", created_at=0.0, diagnosis=diagnose(bundle.run))
            bundle = replace(
                bundle, diagnoses=(stored_diagnosis,), findings=stored_diagnosis.diagnosis.findings
            )
        return None if bundle is None else _bytes(bundle)


def _bytes(bundle: RunData) -> bytes:
    return render_html(bundle).encode()


HTML = HtmlExporter()
"""Exporter that the entry point refers to."""
