"""Manifests are parsed strictly, refer only to files inside the folder, and suffice to verify a copy."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError, EvaluationError, FormatError, InputError
from agentguard.evals.datasets.manifest import (
    DATASETS_VARIABLE,
    DatasetCatalogue,
    check_relative_path,
    read_manifest,
    resolve_path,
)
from agentguard.evals.datasets.toml_writer import dumps
from agentguard.evals.datasets.verification import FileStatus, compute_checksums, verify_dataset
from agentguard.trajectory.event_log.log_file import write_log
from tests.unit.evals.inject.runs import shop

BASE = {"name": "mine", "title": "Mine", "format": "event_log", "licence": "MIT"}


def manifest(folder: Path, **more):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.toml").write_text(dumps({**BASE, **more}), encoding="utf-8")
    return read_manifest(folder / "manifest.toml")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Create a folder with a packed log of one run and a plain log of two, each with its checksums."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, count in (("a", 1), ("b", 2)):
        for _ in range(count):
            write_log(shop(), folder / f"{name}.jsonl")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes(), mtime=0))
    (folder / "a.jsonl").unlink()
    files = []
    for name in ("a.jsonl.gz", "b.jsonl"):
        found = compute_checksums(folder / name)
        files.append({"path": name, "sha256": found.sha256, "size": found.size})
        if found.unpacked_sha256:
            files[-1]["unpacked_sha256"] = found.unpacked_sha256
    manifest(folder, redistributed=True, records=3, labels=["failed", "root_cause.step"], file=files)
    return folder


def test_shipped_manifests_are_valid_and_have_a_card():
    found = list(DatasetCatalogue.load())
    assert {"who_and_when", "tau_bench"} <= {one.name for one in found}
    for one in found:
        assert one.folder.name == one.name
        assert one.read_card().startswith("# ")
        assert one.obtain or one.redistributed
        assert one.redistributed or not one.files


def test_complete_copy_is_valid(kept: Path):
    found = verify_dataset(read_manifest(kept / "manifest.toml"))
    assert found.is_valid
    assert [file.status for file in found.files] == [FileStatus.OK, FileStatus.OK]
    assert (found.records, found.passed, found.failed) == (3, 3, 0)
    assert found.labels == {"failed": 3, "root_cause.step": 0}


def test_repacked_copy_is_the_same_data(kept: Path):
    plain = gzip.decompress((kept / "a.jsonl.gz").read_bytes())
    (kept / "a.jsonl.gz").write_bytes(gzip.compress(plain, compresslevel=1))
    assert verify_dataset(read_manifest(kept / "manifest.toml")).is_valid


@pytest.mark.parametrize("name", ["a.jsonl.gz", "b.jsonl"])
@pytest.mark.parametrize("spoil", ["gone", "torn", "longer", "flipped"])
def test_changed_copy_is_reported(kept: Path, name: str, spoil: str):
    path = kept / name
    data = path.read_bytes()
    if spoil == "gone":
        path.unlink()
    elif spoil == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif spoil == "longer":
        path.write_bytes(data + b"{}\n")
    else:
        path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    found = verify_dataset(read_manifest(kept / "manifest.toml"))
    assert not found.is_valid
    assert any(name in problem for problem in found.problems)
    assert all(error.file and name in error.file for error in found.broken)


def test_single_file_is_verified_against_its_entry(kept: Path):
    one = read_manifest(kept / "manifest.toml")
    found = verify_dataset(one, kept / "b.jsonl")
    assert [file.path for file in found.files] == ["b.jsonl"]
    assert found.files[0].status is FileStatus.OK
    assert found.is_valid


def test_part_is_verified_against_its_manifest(tmp_path: Path):
    parts = [{"name": name, "files": f"{name}/*.jsonl", "records": 1} for name in ("x", "y")]
    one = manifest(tmp_path / "m", records=2, part=parts)
    copy = tmp_path / "copy"
    for name in ("x", "y"):
        (copy / name).mkdir(parents=True)
        write_log(shop(), copy / name / "run.jsonl")
    (copy / "other.jsonl").write_text("not a run")
    assert verify_dataset(one, copy).records == 2
    assert verify_dataset(one, copy).is_valid
    assert verify_dataset(one, copy / "x").is_valid
    assert verify_dataset(one, copy).files[0].status is FileStatus.UNKNOWN
    (copy / "y" / "run.jsonl").unlink()
    assert verify_dataset(one, copy).problems == ["1 record, expected 2"]
    (copy / "x" / "run.jsonl").unlink()
    with pytest.raises(EvaluationError, match="has no file of mine"):
        verify_dataset(one, copy)


def test_external_data_requires_a_path(tmp_path: Path):
    with pytest.raises(EvaluationError, match="not included"):
        verify_dataset(manifest(tmp_path / "m"))
    with pytest.raises(EvaluationError, match="no file or folder"):
        verify_dataset(manifest(tmp_path / "m"), tmp_path / "absent")


OUTSIDE = [
    "../x", "/etc/passwd", "a/../../x", "C:/x", "C:x", "..\\x", "a\\b", "//host/x", "a//b", "", ".", "a/.",
    "con", "a/NUL.txt", "x.", "x ", "a:b", "a\0b", "~/../x",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_the_folder_are_rejected(tmp_path: Path, path: str):
    with pytest.raises(FormatError):
        check_relative_path(path)
    with pytest.raises(InputError, match=r"manifest\.toml"):
        manifest(tmp_path / "m", file=[{"path": path}])
    if path:
        with pytest.raises(InputError, match=r"manifest\.toml"):
            manifest(tmp_path / "m", part=[{"name": "p", "files": f"{path}/*"}])


@given(st.text(st.sampled_from("ab./\\:*~ \0cC"), max_size=12))
def test_accepted_path_stays_within_the_folder(path):
    try:
        check_relative_path(path)
    except FormatError:
        return
    joined = Path("/base/folder").joinpath(path)
    assert os.path.normpath(joined).startswith("/base/folder/")
    assert "\\" not in path


def test_link_outside_the_folder_is_rejected(tmp_path: Path):
    (tmp_path / "secret.jsonl").write_text("{}")
    one = manifest(tmp_path / "m", redistributed=True, file=[{"path": "runs.jsonl"}])
    (tmp_path / "m" / "runs.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(InputError, match="is outside"):
        resolve_path(one.folder, "runs.jsonl")
    with pytest.raises(InputError, match="is outside"):
        verify_dataset(one)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"name": "Mine"}, "name"),
        ({"format": "no_such"}, "format"),
        ({"origin": "made up"}, "origin"),
        ({"records": -1}, "records"),
        ({"labels": ["a", 1]}, r"labels\[1\]"),
        ({"surprise": 1}, "surprise"),
        ({"file": [{"path": "a", "sha256": "ABC"}]}, r"file\[0\]"),
        ({"title": 3}, "title"),
    ],
)
def test_invalid_field_is_named(tmp_path: Path, more, field):
    with pytest.raises(InputError, match=rf"manifest.toml, field .*{field}"):
        manifest(tmp_path / "m", **more)


def test_broken_files_are_reported(tmp_path: Path):
    path = tmp_path / "manifest.toml"
    for data in (b"name = ", b"\xff\xfe", b"name = 1\n"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"manifest\.toml"):
            read_manifest(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_manifest(tmp_path / "absent.toml")


def test_user_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    manifest(tmp_path / "sets" / "mine")
    assert "mine" in DatasetCatalogue.load(tmp_path / "sets").names()
    assert DatasetCatalogue.load(tmp_path / "sets" / "mine").get("mine").title == "Mine"
    monkeypatch.setenv(DATASETS_VARIABLE, str(tmp_path / "sets"))
    assert "mine" in DatasetCatalogue.load().names()
    assert "mine" in DatasetCatalogue.load(tmp_path / "sets").names()  # a duplicate folder is not a conflict
    manifest(tmp_path / "other" / "mine")
    with pytest.raises(ConfigError, match="two data sets are named mine"):
        DatasetCatalogue.load(tmp_path / "other")
    with pytest.raises(ConfigError, match="has no data set"):
        DatasetCatalogue.load(tmp_path / "absent")
    with pytest.raises(ConfigError, match="did you mean"):
        DatasetCatalogue.load().get("who_and_wehn")


KEPT = [one.name for one in DatasetCatalogue.load() if one.redistributed]


@pytest.mark.parametrize("name", KEPT or [None])
def test_stored_sets_are_complete(name):
    if name is None:
        pytest.skip("no data set is kept in this installation")
    one = DatasetCatalogue.load().get(name)
    found = verify_dataset(one)
    assert found.is_valid, [*found.problems, *found.broken]
    assert one.has_checksums
    assert one.records == found.records
    assert all(found.labels.values())
    assert sum(file.size for file in found.files) <= 5_000_000
    assert one.origin == "injected"
