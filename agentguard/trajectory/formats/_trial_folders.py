"""Trial folders of Harbor and of Terminal-Bench 1, as records for `terminal_bench`.

Harbor writes ``<job>/<trial>/{result.json, agent/trajectory.json, verifier/reward.txt}``, Terminal-Bench 1
``<run>/<task>/<trial>/{results.json, sessions/agent.cast}``. A cast is a recording of the terminal; the lines
of Claude Code's stream-json are cut out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory._safe_json import loads
from agentguard.trajectory.formats._dataset_folder import iter_values, read_document

_LEVELS = ("", "*/", "*/*/", "*/*/*/")
_RESULTS = ("result.json", "results.json")
_TRAJECTORY = Path("agent", "trajectory.json")
_CAST = Path("sessions", "agent.cast")
_REWARD = Path("verifier", "reward.txt")
_TERMINAL_CODE_PATTERN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_EVENT_PATTERN = re.compile(r'^\{"type":.*\}$', re.MULTILINE)


def find_trial_folders(folder: Path) -> list[Path]:
    """Return the trial folders at most three levels below a folder, in order of their path."""
    paths = (path for level in _LEVELS for name in _RESULTS for path in folder.glob(level + name))
    return sorted({path.parent for path in paths if _is_trial(path.parent)})


def read_trial(folder: Path) -> dict[str, Any]:
    """Return the record of a trial.

    Raises:
        FormatError: a file of the trial is damaged, or the agent wrote no trajectory that can be read.
    """
    path = next(folder / name for name in _RESULTS if (folder / name).is_file())
    result = read_document(path)
    if not isinstance(result, Mapping):
        raise FormatError("expected an object", file=str(path))
    trajectory, cast = folder / _TRAJECTORY, folder / _CAST
    if trajectory.is_file():
        reward = _read_reward(folder / _REWARD)
        return {
            "trial": folder.name,
            "trajectory": read_document(trajectory),
            "reward": reward,
            "result": result,
        }
    if cast.is_file() and (events := _read_cast_events(cast)):
        return {"task": result.get("task_id"), "trial": folder.name, **result, "events": events}
    reason = (
        "the trial has neither agent/trajectory.json nor stream-json of Claude Code in sessions/agent.cast"
    )
    raise FormatError(
        reason, file=str(folder), hint="other agents' logs are read as files, with their format"
    )


def _is_trial(folder: Path) -> bool:
    return any((folder / path).is_file() for path in (_TRAJECTORY, _CAST)) or (folder / "verifier").is_dir()


def _read_reward(path: Path) -> float | None:
    try:
        return float(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _read_cast_events(path: Path) -> list[dict[str, Any]]:
    output = []
    for item in iter_values(path):
        frame = item.value
        if isinstance(frame, list) and len(frame) == 3 and frame[1] == "o" and isinstance(frame[2], str):
            output.append(frame[2])
    text = _TERMINAL_CODE_PATTERN.sub("", "".join(output)).replace("\r", "")
    events = []
    for line in _EVENT_PATTERN.findall(text):
        try:
            event = loads(line)
        except FormatError:  # A line of another program, or one that the end of the recording cuts.
            continue
        events.append(event)
    return [event for event in events if isinstance(event, dict)]
