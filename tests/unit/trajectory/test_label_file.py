"""Labels of runs in a YAML file beside the runs."""

from pathlib import Path

import pytest

from agentguard.errors import FormatError
from agentguard.evals.datasets.dataset import compute_checksum
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read

SAMPLES = Path(__file__).resolve().parents[3] / "samples"


def test_labels_of_the_samples_annotate_their_runs() -> None:
    records = load_records(SAMPLES / "labels.yaml")
    assert len(records) == 15
    by_id = {record.trajectory.id: record.annotation for record in records}
    assert by_id["02-teapot"].failed is False
    cause = by_id["04-wine-bottle"].root_cause
    assert cause is not None
    assert (cause.step, cause.agent, cause.codes) == (6, "assistant", ("agent_error:memory.hallucination",))
    assert [record.trajectory for record in records] == [
        record.trajectory for record in load_records(SAMPLES)
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("runs: [a]", "not a label file"),
        ("a: 1", "not a label file"),
        ("runs: {x.json: {failed: maybe}}", r"field runs\.x\.json\.failed"),
        ("runs: {x.json: 1}", r"x\.json"),
        ("runs: {", "not valid YAML"),
    ],
)
def test_broken_label_file_is_rejected_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "labels.yaml"
    file.write_text(text)
    with pytest.raises(FormatError, match=rf"labels\.yaml.*{reason}|{reason}.*labels\.yaml"):
        list(read(file))


def test_missing_run_of_a_label_file_is_unreadable(tmp_path: Path) -> None:
    file = tmp_path / "labels.yml"
    file.write_text("runs: {gone.json: {failed: true}}")
    (found,) = read(file)
    assert isinstance(found, UnreadableRecord)
    assert "gone.json" in str(found.error)


def test_checksum_of_a_label_file_covers_its_runs(tmp_path: Path) -> None:
    file, run = tmp_path / "labels.yaml", tmp_path / "a.json"
    file.write_text("runs: {a.json: {failed: true}}")
    checksums = set()
    for content in ("x", "y"):
        run.write_text(f'[{{"role": "user", "content": "{content}"}}]')
        checksums.add(compute_checksum([file]))
    assert len(checksums) == 2
