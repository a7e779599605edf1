"""The reader of bundles accepts what the writer wrote, and gives a typed error for everything else."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from agentguard.bundles import Bundle, RecordedCall, read_bundle, verify_bundle, write_bundle
from agentguard.errors import BundleError
from agentguard.trajectory import Step, Trajectory
from agentguard.trajectory.model import Source

RUN = Trajectory(
    id="run-1",
    format="event_log",
    task="t",
    steps=(Step(index=0, agent="user", source=Source.USER, content="t"),),
)
BUNDLE = Bundle(
    trajectory=RUN,
    model_calls=(RecordedCall(name="model", request={"messages": []}, result="done"),),
    expectations={"verdict": "failed"},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bundles")


def write_members(path, change, compression=zipfile.ZIP_STORED):
    write_bundle(BUNDLE, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_read_bundle_returns_what_was_written(tmp_path):
    write_bundle(BUNDLE, tmp_path / "a.agb")
    assert read_bundle(tmp_path / "a.agb") == BUNDLE
    assert len(verify_bundle(tmp_path / "a.agb")) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update({"../evil": b""}), r"member '\.\./evil' is not part of the format"),
        (lambda m: m.pop("events.json"), "member events.json: is missing"),
        (lambda m: m.update({"events.json": b"[]"}), "member events.json: its SHA-256"),
        (lambda m: m.update({"bundle.json": b"{"}), "member bundle.json: is not valid JSON"),
        (lambda m: m.update({"bundle.json": b'{"members":{}}'}), "field format_version"),
    ],
)
def test_read_bundle_changed_member_is_named(tmp_path, change, message):
    write_members(tmp_path / "a.agb", change)
    with pytest.raises(BundleError, match=message) as caught:
        read_bundle(tmp_path / "a.agb")
    assert caught.value.file == str(tmp_path / "a.agb")


SECRET = "sk-" + "a1B2c3D4e5F6g7H8" * 3


@pytest.mark.parametrize(
    "seeded",
    [
        {"trajectory": replace(RUN, task=f"Use {SECRET}.")},
        {"trajectory": replace(RUN, steps=(replace(RUN.steps[0], content=f"key {SECRET}"),))},
        {"model_calls": (RecordedCall(name="model", request={"messages": [SECRET]}),)},
        {"model_calls": (RecordedCall(name="POST /v1", request={}, result={"body": f'{{"a":"{SECRET}"}}'}),)},
        {"tool_calls": (RecordedCall(name="t", request={}, error_type="ValueError", error=SECRET),)},
        {"diagnosis": {"quote": SECRET}},
        {"expectations": {"verdict": SECRET}},
    ],
)
def test_write_bundle_secret_is_in_no_member(tmp_path, seeded):
    write_bundle(replace(BUNDLE, **seeded), tmp_path / "a.agb")
    data = (tmp_path / "a.agb").read_bytes()
    assert SECRET.encode() not in data
    assert b"[redacted:" in data


def test_read_bundle_returns_the_redaction_patterns(tmp_path):
    write_bundle(replace(BUNDLE, redaction_patterns={"name": "do(ne)"}), tmp_path / "a.agb")
    bundle = read_bundle(tmp_path / "a.agb")
    assert bundle.redaction_patterns == {"name": "do(ne)"}
    assert bundle.model_calls[0].result.startswith("do[redacted:name:")


@pytest.mark.parametrize("patterns", [["x"], {"a": 1}, {"a": "("}, {"a b": "x"}])
def test_read_bundle_wrong_redaction_patterns_are_refused(tmp_path, patterns):
    def change(members):
        members["bundle.json"] = json.dumps(
            {**json.loads(members["bundle.json"]), "redaction_patterns": patterns}
        ).encode()

    write_members(tmp_path / "a.agb", change)
    with pytest.raises(BundleError, match="redaction_patterns"):
        read_bundle(tmp_path / "a.agb")


def test_read_bundle_compressed_member_is_refused(tmp_path):
    write_members(tmp_path / "a.agb", lambda members: None, zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleError, match="is compressed or too large"):
        read_bundle(tmp_path / "a.agb")


def test_read_bundle_missing_file_is_a_bundle_error(tmp_path):
    with pytest.raises(BundleError, match="cannot be read"):
        read_bundle(tmp_path / "a.agb")


@given(position=st.integers(0, 10**6), value=st.integers(0, 255), length=st.integers(0, 10**6))
def test_read_bundle_damaged_bytes_give_the_bundle_or_a_bundle_error(folder, position, value, length):
    path = folder / "a.agb"
    write_bundle(BUNDLE, path)
    data = bytearray(path.read_bytes())
    data[position % len(data)] = value
    path.write_bytes(data[: length or None])
    try:
        assert read_bundle(path) == BUNDLE
    except BundleError as error:
        assert error.file == str(path)


@given(st.binary(max_size=400))
def test_read_bundle_any_member_content_is_a_bundle_error(folder, content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("bundle.json", content)
    (folder / "b.agb").write_bytes(stream.getvalue())
    with pytest.raises(BundleError):
        read_bundle(folder / "b.agb")
