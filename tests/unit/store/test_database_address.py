"""Location of the store, and secrecy of its password."""

import logging
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError, StoreUnavailable
from agentguard.store import Store
from agentguard.store.db.database_address import resolve_address
from agentguard.store.db.engine import describe_error

CANARY = "c4nary/p@ss:word"
QUOTED = "c4nary%2Fp%40ss%3Aword"


def test_url_comes_from_argument_or_environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert resolve_address(None, {}).path == tmp_path / ".agentguard" / "store.db"
    assert resolve_address(None, {"AGENTGUARD_STORE": ""}).path == tmp_path / ".agentguard" / "store.db"
    assert resolve_address(None, {"AGENTGUARD_STORE": "else.db"}).path == tmp_path / "else.db"
    assert resolve_address("given.db", {"AGENTGUARD_STORE": "else.db"}).path == tmp_path / "given.db"


def test_sqlite_paths_and_urls_are_parsed(tmp_path):
    for one in (tmp_path / "a.db", str(tmp_path / "a.db"), f"sqlite:///{tmp_path}/a.db"):
        assert resolve_address(one).path == tmp_path / "a.db"
        assert resolve_address(one).kind == "sqlite"
    odd = tmp_path / "a b?c#d%e.db"
    assert resolve_address(odd).path == odd
    assert resolve_address(Path("~/a.db")).path == Path.home() / "a.db"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_urls_are_parsed(scheme):
    address = resolve_address(f"{scheme}://u:{QUOTED}@db.example/name?sslmode=require")
    assert address.kind == "postgresql"
    assert address.url.drivername == "postgresql+psycopg"
    assert address.url.password == CANARY
    assert str(address) == "postgresql://u:***@db.example/name?sslmode=require"


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://u:{QUOTED}@h/b",
        f"postgresql+psycopg2://u:{QUOTED}@h/b",
        f"postgresql://u:{QUOTED}@h:notaport/b",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=ro",
        "sqlite:///a.db?timeout=1",
        "a\x00b.db",
    ],
)
def test_invalid_url_is_rejected_without_its_password(url):
    with pytest.raises(ConfigError) as caught:
        resolve_address(url)
    assert "c4nary" not in str(caught.value)


@pytest.mark.parametrize("query", ["", f"?password={QUOTED}", f"?sslpassword={QUOTED}"])
def test_password_appears_in_no_output(query, caplog):
    """Checks the address, errors, their chain and a log at DEBUG, with an unreachable server."""
    caplog.set_level(logging.DEBUG)
    url = f"postgresql://u:{QUOTED}@127.0.0.1:1/name{query}"
    address = resolve_address(url)
    assert "c4nary" not in f"{address} {address!r}"
    with pytest.raises(StoreUnavailable) as caught:
        Store.open(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "c4nary" not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert "c4nary" not in caplog.text


@given(st.text(min_size=4, max_size=20).filter(str.strip))
def test_password_is_masked_in_any_notation(password):
    address = resolve_address("postgresql://u@h/b")
    url = address.url.set(password=password)
    masked = type(address)(kind="postgresql", url=url)
    told = describe_error(RuntimeError(f"cannot use {url.render_as_string(hide_password=False)} now"), masked)
    assert f":{password}@" not in told
    assert url.render_as_string(hide_password=False) not in told


def test_new_file_is_readable_only_by_owner(tmp_path):
    with Store.open(tmp_path / "new" / "store.db"):
        assert (tmp_path / "new" / "store.db").stat().st_mode & 0o077 == 0
        assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_folder_is_rejected_as_a_store(tmp_path):
    with pytest.raises(ConfigError, match="is a folder: a store is a file"):
        resolve_address(tmp_path)
