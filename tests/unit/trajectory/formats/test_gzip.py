"""Files named ``.gz`` are unpacked on reading; truncated and invalid files give a clear error."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from tests.unit.trajectory.formats.samples import SAMPLES

LOG = SAMPLES / "event_log.jsonl"


def test_packed_log_equals_the_log(tmp_path: Path) -> None:
    packed = tmp_path / "runs.jsonl.gz"
    packed.write_bytes(gzip.compress(LOG.read_bytes()))
    assert load_records(packed) == load_records(LOG)
    assert load_records(tmp_path) == load_records(LOG)


def test_several_members_are_one_file(tmp_path: Path) -> None:
    packed = tmp_path / "runs.jsonl.gz"
    packed.write_bytes(b"".join(gzip.compress(line) for line in LOG.read_bytes().splitlines(keepends=True)))
    assert load_records(packed, format="event_log") == load_records(LOG)


def test_truncated_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    packed = tmp_path / "torn.jsonl.gz"
    packed.write_bytes(gzip.compress(LOG.read_bytes())[:-20])
    with pytest.raises(FormatError, match=r"torn.*cannot be read"):
        load_records(packed)


@pytest.mark.parametrize("data", [b"{}", b"\x1f\x8b\x08\x00rubbish that is no deflate stream"])
def test_invalid_gzip_is_an_error(tmp_path: Path, data: bytes) -> None:
    packed = tmp_path / "other.json.gz"
    packed.write_bytes(data)
    with pytest.raises(FormatError, match="cannot be read"):
        load_records(packed)
    (broken,) = read(tmp_path)
    assert isinstance(broken, UnreadableRecord)
