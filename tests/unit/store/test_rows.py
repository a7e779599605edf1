"""Rows, their ids and keys."""

import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError, MissingExtra, StoreError
from agentguard.store.db.payload import RowRejected
from agentguard.store.db.row_mapping import to_parameters, validate_query_id, validate_query_tenant
from agentguard.store.db.rows import EffectRow, FindingRow, compute_digest, compute_verdict_key, generate_id
from agentguard.store.options import StoreOptions
from agentguard.store.read.pagination import decode_row_cursor, encode_cursor


def test_ids_sort_by_creation():
    ids = [generate_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(one) == 32 for one in ids)
    assert ids == sorted(ids)


@given(st.lists(st.text(st.characters(codec=None, exclude_categories=())), max_size=4))
def test_digest_separates_texts(texts):
    assert compute_digest(*texts) == compute_digest(*texts)
    assert compute_digest(*texts) != compute_digest(*texts, "")
    if len(texts) > 1 and (texts[0] or texts[1]):
        assert compute_digest(*texts) != compute_digest(texts[0] + texts[1], *texts[2:])


def test_verdict_key_depends_on_content_question_judge_and_version():
    parts = ("content", "question", "judge", "1")
    keys = {compute_verdict_key(*parts)} | {
        compute_verdict_key(*parts[:i], "x", *parts[i + 1 :]) for i in range(4)
    }
    assert len(keys) == 5


def test_effect_key_does_not_depend_on_state():
    effect = EffectRow(run_id="r", tool="t", arguments="a")
    assert effect.key == EffectRow(run_id="r", tool="t", arguments="a", state="done", created_at=0.0).key


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=30))
def test_cursor_round_trips(at, id):
    assert decode_row_cursor(encode_cursor(at, id)) == (at, id)


@given(st.text(max_size=30))
def test_invalid_cursor_is_an_error(text):
    try:
        at, id = decode_row_cursor(text)
    except StoreError:
        return
    assert isinstance(at, float)
    assert isinstance(id, str)


@pytest.mark.parametrize("id", ["", "a\nb", "a\x00", "\x7f", "\ud800", "x" * 257, None, 7])
def test_invalid_ids_are_rejected(id):
    with pytest.raises(StoreError):
        validate_query_id(id)
    with pytest.raises(RowRejected):
        to_parameters(FindingRow(run_id=id, detector="d"))


@pytest.mark.parametrize("id", ["a", "x" * 256, "WW/algo 17#3", "é😀", "../..", "'; --"])
def test_valid_ids_are_accepted(id):
    assert validate_query_id(id) == id
    assert to_parameters(FindingRow(run_id=id, detector="d"))["run_id"] == id


def test_tenant_length_is_limited():
    assert validate_query_tenant("") == ""
    with pytest.raises(StoreError, match="longer than 64"):
        validate_query_tenant("t" * 65)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rows": 0},
        {"max_bytes": 0},
        {"synchronous": "off"},
        {"lock_timeout_s": -1},
        {"lock_timeout_s": float("nan")},
    ],
)
def test_options_are_validated(wrong):
    with pytest.raises(ConfigError, match=r"StoreOptions\."):
        StoreOptions(**wrong)


def test_rows_need_no_database():
    code = "import sys, agentguard.store.db.rows; print([m for m in sys.modules if 'alchemy' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("package", "extra"), [("sqlalchemy", "store"), ("psycopg", "postgres")])
def test_missing_extra_is_named(package, extra, monkeypatch):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from agentguard.errors import MissingExtra\n"
        "try:\n"
        "    from agentguard.store import Store\n"
        "    Store.open('postgresql://u@127.0.0.1:1/b')\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(MissingExtra(package, extra))
