from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.local_sessions import find_claude_code_sessions, find_codex_sessions

MESSAGE = '{"type":"user","message":{"role":"user","content":"a"}}\n'


def write(path: Path, text: str, age: int) -> Path:
    """Write a file that is ``age`` seconds old."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
    return path


class TestClaudeCode:
    @pytest.fixture
    def projects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
        return tmp_path / "config" / "projects"

    def test_newest_sessions_of_all_projects_are_first(self, projects: Path) -> None:
        old = write(projects / "-a" / "1.jsonl", MESSAGE, age=30)
        new = write(projects / "-b" / "2.jsonl", MESSAGE, age=10)
        middle = write(projects / "-a" / "3.jsonl", MESSAGE, age=20)
        assert find_claude_code_sessions() == [new, middle, old]
        assert find_claude_code_sessions(last=2) == [new, middle]

    def test_project_is_found_by_its_escaped_path(self, projects: Path, tmp_path: Path) -> None:
        project = tmp_path / "my_app.v2"
        name = "".join(letter if letter.isalnum() else "-" for letter in str(project.resolve()))
        session = write(projects / name / "1.jsonl", MESSAGE, age=1)
        write(projects / f"{name}-other" / "2.jsonl", MESSAGE, age=0)
        assert find_claude_code_sessions([project]) == [session]

    def test_long_name_of_a_project_is_cut(self, projects: Path) -> None:
        session = write(projects / ("-" + "x" * 199 + "-1k2j3h") / "1.jsonl", MESSAGE, age=1)
        assert find_claude_code_sessions([Path("/" + "x" * 240)]) == [session]

    def test_sub_agents_and_files_without_messages_are_no_sessions(self, projects: Path) -> None:
        session = write(projects / "-a" / "1.jsonl", MESSAGE, age=9)
        write(projects / "-a" / "agent-7.jsonl", MESSAGE, age=1)
        write(projects / "-a" / "1" / "subagents" / "agent-8.jsonl", MESSAGE, age=1)
        write(projects / "-a" / "2.jsonl", '{"type":"summary","summary":"s","leafUuid":"u"}\n', age=1)
        assert find_claude_code_sessions() == [session]

    def test_missing_sessions_are_an_error_with_folder_and_variable(
        self, projects: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(FormatError, match="no sessions of") as caught:
            find_claude_code_sessions([tmp_path])
        assert caught.value.file == str(projects)
        assert "CLAUDE_CONFIG_DIR" in str(caught.value.hint)

    def test_home_folder_is_the_default(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        session = write(tmp_path / ".claude" / "projects" / "-a" / "1.jsonl", MESSAGE, age=1)
        assert find_claude_code_sessions() == [session]


class TestCodex:
    @pytest.fixture
    def sessions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
        return tmp_path / "codex" / "sessions"

    def head(self, folder: Path) -> str:
        return json.dumps({"type": "session_meta", "payload": {"id": "x", "cwd": str(folder)}}) + "\n"

    def test_newest_rollouts_are_first(self, sessions: Path, tmp_path: Path) -> None:
        old = write(sessions / "2026/01/02/rollout-a.jsonl", self.head(tmp_path), age=20)
        new = write(sessions / "2026/01/01/rollout-b.jsonl", self.head(tmp_path), age=10)
        write(sessions / "2026/01/01/other.jsonl", self.head(tmp_path), age=1)
        assert find_codex_sessions() == [new, old]
        assert find_codex_sessions(last=1) == [new]

    def test_project_is_the_working_folder_of_the_head(self, sessions: Path, tmp_path: Path) -> None:
        wanted = write(sessions / "2026/01/02/rollout-a.jsonl", self.head(tmp_path.resolve()), age=20)
        write(sessions / "2026/01/02/rollout-b.jsonl", self.head(Path("/elsewhere")), age=10)
        write(sessions / "2026/01/02/rollout-c.jsonl", "{broken\n", age=5)
        assert find_codex_sessions([tmp_path]) == [wanted]

    def test_missing_sessions_are_an_error(self, sessions: Path) -> None:
        with pytest.raises(FormatError, match="no sessions in the folder") as caught:
            find_codex_sessions()
        assert caught.value.file == str(sessions)
