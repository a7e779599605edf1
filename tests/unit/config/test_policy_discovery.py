"""Discovery of the policy of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentguard.config.policy_discovery import find_policy
from agentguard.errors import ConfigError

POLICY = "detectors: {exact_loop: {repeat: 5}}\n"
PROJECT = "[tool.agentguard.detectors.exact_loop]\nrepeat = 4\n"


def test_policy_file_in_parent_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "agentguard.yaml").write_text(POLICY)
    (folder := tmp_path / "a" / "b").mkdir(parents=True)
    found = find_policy(folder)
    assert found is not None
    assert found[1] == tmp_path / "agentguard.yaml"
    assert found[0].detectors["exact_loop"] == {"repeat": 5}


def test_table_of_pyproject_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    found = find_policy(tmp_path)
    assert found is not None
    assert found[0].detectors["exact_loop"] == {"repeat": 4}


def test_policy_file_has_precedence_over_pyproject(tmp_path: Path) -> None:
    (tmp_path / "agentguard.yaml").write_text(POLICY)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    found = find_policy(tmp_path)
    assert found is not None
    assert found[1].name == "agentguard.yaml"


def test_search_ends_at_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "agentguard.yaml").write_text(POLICY)
    (repository := tmp_path / "repository").mkdir()
    (repository / ".git").mkdir()
    (repository / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert find_policy(repository) is None


@pytest.mark.parametrize("text", ["[tool", "[tool.agentguard]\nunknown = 1\n"])
def test_invalid_pyproject_raises_error_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        find_policy(tmp_path)
