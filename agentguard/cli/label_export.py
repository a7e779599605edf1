"""Export of the labels of people: labelled runs as an event log, and judge questions as training data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from agentguard.cli.run_input import Redaction
from agentguard.cli.training_export import ExportCounts
from agentguard.quantity import format_quantity
from agentguard.trajectory.safe_json import dumps

if TYPE_CHECKING:
    from agentguard.localize.human_labels import LabelledRun
    from agentguard.store.store import Store

_MAX_LISTED_IDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelExportSummary:
    """Summary of an export of labelled runs.

    Attributes:
        written: number of written runs.
        failed_without_step: number of written runs that failed and have no root-cause step.
        omitted: the labelled runs that are not written, with the reasons.
    """

    written: int
    failed_without_step: int
    omitted: Sequence[LabelledRun]

    def format(self) -> str:
        """Return the counts, and one line for each reason of an omission."""
        text = f"{format_quantity(self.written, 'labelled run')} written"
        if self.failed_without_step:
            text += f", {self.failed_without_step} of them failed without a step"
        if not self.written:
            text = "no file is written: no run has a clear label; label diagnoses in `agentguard view`"
        return "\n".join([text, *self._describe_omissions()])

    def _describe_omissions(self) -> Iterator[str]:
        """Yield a line for each reason, with the number of runs and the first ids."""
        for reason in dict.fromkeys(run.omission for run in self.omitted):
            ids = [run.run_id for run in self.omitted if run.omission == reason]
            hidden = len(ids) - _MAX_LISTED_IDS
            further = f" and {hidden} more (--json lists all)" if hidden > 0 else ""
            yield f"{len(ids)} left out, because {reason}: {', '.join(ids[:_MAX_LISTED_IDS])}{further}"


def export_labelled_runs(store: Store, output: Path, *, tenant: str = "") -> LabelExportSummary:
    """Write the labelled runs of a tenant, with the labels as annotations, to a new event log.

    The function replaces an existing file. If no run has a clear label, it changes no file.
    """
    from agentguard.localize.human_labels import iter_labelled_runs
    from agentguard.trajectory.event_log.log_file import EventLog
    from agentguard.trajectory.event_log.recorder import build_events

    count, without_step = 0, 0
    omitted: list[LabelledRun] = []
    for run in iter_labelled_runs(store, tenant=tenant):
        if run.record is None:
            omitted.append(run)
            continue
        if not count:
            output.unlink(missing_ok=True)
        with EventLog(output) as log:
            log.extend(build_events(run.record))
        count += 1
        cause = run.record.annotation.root_cause
        without_step += bool(run.record.annotation.failed and (cause is None or cause.step is None))
    return LabelExportSummary(written=count, failed_without_step=without_step, omitted=omitted)


def export_judge_questions(
    store: Store, ids: Sequence[str], name: str, *, tenant: str = "", redaction: Redaction | None = None
) -> Iterator[bytes]:
    """Yield the judge's questions with the answers of people; arguments as for `export_training`."""
    from agentguard.localize.human_labels import iter_run_labels
    from agentguard.localize.llm.fine_tuning_examples import build_fine_tuning_examples, to_training_line

    counts, chosen = ExportCounts(), set(ids)
    for label in iter_run_labels(store, tenant=tenant):
        run = store.get_trajectory(label.run_id, tenant=tenant)
        if run is None or (chosen and label.run_id not in chosen):
            continue
        for example in build_fine_tuning_examples(run, label):
            counts.entries += 1
            line = to_training_line(example, name)
            if line is None:
                counts.alone += 1
                continue
            counts.written += 1
            yield dumps(redaction.redact_data(line) if redaction is not None else line)
    typer.echo(counts.format_summary(), err=True)
