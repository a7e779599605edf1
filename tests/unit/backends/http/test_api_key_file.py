"""API keys in files: changes are noticed, unreadable files keep the old key."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentguard.backends.http import ApiKeyFile
from agentguard.errors import ConfigError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_key_without_white_space_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" abc\n")
    assert ApiKeyFile(tmp_path / "key").key == "abc"


@pytest.mark.parametrize("content", [b"", b" \n", b"a\nb", b"\xff\xfe", "é".encode(), b"x" * 70_000])
def test_file_without_a_key_is_a_configuration_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match="has no key") as caught:
        ApiKeyFile(tmp_path / "key")
    assert b"x" * 9 not in str(caught.value).encode(), "an error has no part of the key"


def test_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ApiKeyFile(tmp_path / "none")


def test_changed_key_is_noticed_within_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "key", Clock()
    path.write_text("old")
    held = ApiKeyFile(path, clock=clock)
    beside = tmp_path / "new"
    beside.write_text("newer")
    beside.replace(path)
    assert (held.refresh(), held.key) == (False, "old")
    clock.now = 1.0
    assert (held.refresh(), held.key) == (True, "newer")
    clock.now = 2.0
    assert held.refresh() is False


def test_unreadable_file_keeps_the_key_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "key", Clock()
    path.write_text("old")
    held = ApiKeyFile(path, clock=clock)
    path.unlink()
    with caplog.at_level(logging.WARNING):
        for clock.now in (1.0, 2.0, 3.0):
            assert (held.refresh(), held.key) == (False, "old")
    assert len(caplog.records) == 1
    path.write_text("next")
    clock.now = 4.0
    assert (held.refresh(), held.key) == (True, "next")
