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
    """Return a run as one HTML file with all branches. Long texts are folded and not cut."""
    view = RunPageModel.from_run_data(data, fold=FoldOptions(max_chars=_NO_FOLD))
    links = FileLinks(branches=view.branches)
    return (renderer or Renderer()).render_text(
        "run_export.html",
        view=view,
        run=data.run,
        links=links,
        timeline=view.build_timeline(view.branches.current, None),
        styles="\n".join((ASSETS_FOLDER / name).read_text(encoding="utf-8") for name in _STYLES),
        current_branch=view.branches.current,
        forks=view.group_forks(view.branches.current),
        turns=view.build_turns(view.branches.current, 0, len(view.branches.current.steps)),
        abandoned=[
            (
                branch,
                view.build_turns(
                    branch, branch.fork_step, len(branch.steps), prefix=links.build_id_prefix(branch.id)
                ),
            )
            for branch in view.branches.abandoned
        ],
        threshold=ACTION_THRESHOLD,
    )


class HtmlExporter:
    """Exporter ``html`` of ``agentguard convert``."""

    def of_record(self, record: Record) -> bytes:
        """Diagnose a run of a file, and return its HTML in UTF-8."""
        from agentguard.guard import diagnose

        return _bytes(RunData.from_run(record.trajectory, diagnose(record.trajectory)))

    def of_stored(self, store: Store, run_id: str, *, tenant: str = "") -> bytes | None:
        """Return the HTML of a stored run in UTF-8, or None if there is no such run.

        A run without a diagnosis is diagnosed; the store does not change.
        """
        data = RunData.load(store, run_id, tenant)
        if data is not None and not data.diagnoses:
            from agentguard.guard import diagnose

            diagnosis = diagnose(data.run)
            stored_diagnosis = StoredDiagnosis(id="", created_at=0.0, diagnosis=diagnosis)
            data = replace(data, diagnoses=(stored_diagnosis,), findings=diagnosis.findings)
        return None if data is None else _bytes(data)


def _bytes(data: RunData) -> bytes:
    return render_html(data).encode()


HTML = HtmlExporter()
"""Object of the entry point ``html``."""
