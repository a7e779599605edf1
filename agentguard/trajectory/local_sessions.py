"""Sessions of coding agents on this machine.

Claude Code writes ``~/.claude/projects/<project>/<session>.jsonl``; ``CLAUDE_CONFIG_DIR`` replaces
``~/.claude``. Codex CLI writes ``~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl``; ``CODEX_HOME`` replaces
``~/.codex``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from agentguard.errors import FormatError
from agentguard.trajectory.safe_json import loads

_SUB_AGENT_PREFIX = "agent-"
_MAX_FOLDER_NAME = 200
_HEAD_BYTES = 1 << 18


def find_claude_code_sessions(projects: Sequence[Path] = (), *, last: int | None = None) -> list[Path]:
    """Return the session files of Claude Code, newest first, without those of sub-agents.

    Args:
        projects: working folders of the sessions; empty for all.
        last: maximum number of sessions.

    Raises:
        FormatError: there is no session.
    """
    root = _resolve_root("CLAUDE_CONFIG_DIR", ".claude") / "projects"
    folders = [_escape_path(project) for project in projects]
    files = (
        path
        for path in root.glob("*/*.jsonl")
        if not path.name.startswith(_SUB_AGENT_PREFIX)
        and (not folders or any(_is_project_folder(path.parent.name, folder) for folder in folders))
    )
    return _select_sessions(files, _has_messages, last, projects, root, variable="CLAUDE_CONFIG_DIR")


def find_codex_sessions(projects: Sequence[Path] = (), *, last: int | None = None) -> list[Path]:
    """Return the rollout files of Codex CLI, newest first.

    Args:
        projects: working folders of the sessions; empty for all.
        last: maximum number of sessions.

    Raises:
        FormatError: there is no session.
    """
    root = _resolve_root("CODEX_HOME", ".codex") / "sessions"
    folders = {str(project.resolve()) for project in projects}

    def is_selected(path: Path) -> bool:
        return not folders or _read_codex_folder(path) in folders

    files = root.rglob("rollout-*.jsonl")
    return _select_sessions(files, is_selected, last, projects, root, variable="CODEX_HOME")


def _resolve_root(variable: str, folder: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / folder).expanduser()


def _select_sessions(
    files: Iterable[Path],
    is_selected: Callable[[Path], bool],
    last: int | None,
    projects: Sequence[Path],
    root: Path,
    *,
    variable: str,
) -> list[Path]:
    """Return the newest selected files. Raises FormatError if no file is selected."""
    selected = list(islice(filter(is_selected, _sort_newest_first(files)), last))
    if not selected:
        names = ", ".join(str(project.resolve()) for project in projects)
        where = f" of {names}" if names else ""
        raise FormatError(
            f"no sessions{where} in the folder",
            file=str(root),
            hint=f"set {variable} if it is another folder",
        )
    return selected


def _sort_newest_first(files: Iterable[Path]) -> Iterator[Path]:
    times = []
    for path in files:
        try:
            times.append((path.stat().st_mtime, path))
        except OSError:  # The client may remove a session at any time.
            continue
    return (path for _, path in sorted(times, key=lambda pair: (-pair[0], pair[1])))


def _escape_path(project: Path) -> str:
    return re.sub(r"[^A-Za-z0-9]", "-", str(project.resolve()))


def _is_project_folder(name: str, folder: str) -> bool:
    """Return True for the folder of a project; Claude Code cuts a long name and appends a hash."""
    if len(folder) <= _MAX_FOLDER_NAME:
        return name == folder
    return name.startswith(folder[:_MAX_FOLDER_NAME] + "-")


def _has_messages(path: Path) -> bool:
    """Return True unless the file has only titles and file snapshots."""
    return b'"message":' in _read_head(path)


def _read_codex_folder(path: Path) -> str | None:
    """Return the working folder of a rollout; None if its first line does not name it."""
    try:
        line = loads(_read_head(path).split(b"\n", 1)[0])
    except FormatError:
        return None
    payload = line.get("payload") if isinstance(line, dict) else None
    folder = payload.get("cwd") if isinstance(payload, dict) else None
    return folder if isinstance(folder, str) else None


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""
