"""Outcomes of runs that the user supplies: a CSV or JSON file of run ids and outcomes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard.errors import ConfigError
from agentguard.trajectory.model import Record

PASS_SCORE: Final = 1.0
"""Score from which a run passed."""
RECORDED: Final = "recorded"
"""Value of ``--outcomes`` for the outcomes in the runs' own files."""

_WORDS: Final = {
    **dict.fromkeys(("failed", "fail", "failure", "false", "no", "error", "incorrect"), True),
    **dict.fromkeys(("passed", "pass", "success", "true", "yes", "ok", "correct"), False),
}
_ID_FIELDS: Final = ("run_id", "id", "trajectory_id", "run")
_OUTCOME_FIELDS: Final = ("outcome", "failed", "passed", "success", "score", "reward")
_MAX_LISTED_IDS: Final = 10
_FORMS: Final = (
    "give run ids with failed, passed or a score: a CSV with the columns run_id and outcome, or JSON"
)


class KnownOutcomes:
    """Known outcomes by run id.

    Args:
        outcomes: whether each run failed, by run id.
        source: file of the outcomes, for messages.
        use_recorded: whether `add_recorded` adds the outcomes that runs' files record.
    """

    def __init__(
        self, outcomes: Mapping[str, bool] | None = None, *, source: str = "", use_recorded: bool = False
    ) -> None:
        self._outcomes = dict(outcomes or {})
        self._unmatched = dict.fromkeys(self._outcomes)
        self._source = source
        self._use_recorded = use_recorded

    @classmethod
    def from_option(cls, option: str | None, *, pass_score: float) -> KnownOutcomes:
        """Build the outcomes of ``--outcomes``. Raises ConfigError if its file cannot be used."""
        if option is None or option == RECORDED:
            return cls(use_recorded=option == RECORDED)
        return cls(read_outcomes(Path(option), pass_score=pass_score), source=option)

    def add_recorded(self, record: Record) -> None:
        """Add the outcome that the run's file records, if recorded outcomes are used."""
        self._unmatched.pop(record.trajectory.id, None)
        if self._use_recorded and record.annotation.failed is not None:
            self._outcomes[record.trajectory.id] = record.annotation.failed

    def find(self, run_id: str) -> bool | None:
        """Return whether the run failed; None if its outcome is not known."""
        self._unmatched.pop(run_id, None)
        return self._outcomes.get(run_id)

    def describe_unmatched(self) -> str:
        """Return a message with the ids of the outcomes' file that no run so far has; empty without such ids.

        Raises:
            ConfigError: no run has any id of the file.
        """
        if not self._unmatched:
            return ""
        ids = ", ".join(list(self._unmatched)[:_MAX_LISTED_IDS])
        further = len(self._unmatched) - _MAX_LISTED_IDS
        listed = f"{ids} and {further} more" if further > 0 else ids
        if len(self._unmatched) == len(self._outcomes):
            raise ConfigError(
                f"{self._source}: no run has one of its ids ({listed}); `agentguard diagnose --json` has the "
                "ids of the runs as trajectory_id"
            )
        return f"{self._source}: {len(self._unmatched)} of {len(self._outcomes)} ids match no run: {listed}"


def read_outcomes(path: Path, *, pass_score: float = PASS_SCORE) -> dict[str, bool]:
    """Read whether each run failed, by run id.

    Args:
        path: a CSV file with a header, or a JSON object of run id to outcome. Also a JSON list, or JSON
            lines, of objects with a run id and an outcome.
        pass_score: minimum score of a passed run.

    Raises:
        ConfigError: the file cannot be read, or an entry has no run id or no outcome.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {type(error).__name__}") from None
    rows = _read_json(text, path) if text.lstrip()[:1] in ("{", "[") else _read_csv(text, path)
    outcomes: dict[str, bool] = {}
    for place, (run_id, name, value) in rows:
        failed = _parse_outcome(name, value, pass_score)
        if failed is None:
            raise ConfigError(f"{path}, {place}: {value!r} is not an outcome; {_FORMS}")
        if outcomes.setdefault(run_id, failed) != failed:
            raise ConfigError(f"{path}, {place}: run {run_id!r} has another outcome above")
    return outcomes


_Row = tuple[str, tuple[str, str, Any]]
"""Place in the file; run id, name of the outcome field, and its value."""


def _read_json(text: str, path: Path) -> Iterator[_Row]:
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            data = [orjson.loads(line) for line in text.splitlines() if line.strip()]
        except orjson.JSONDecodeError:
            raise ConfigError(f"{path} is not valid JSON; {_FORMS}") from None
    if isinstance(data, dict) and not any(name in data for name in _ID_FIELDS):
        yield from ((f"entry {name!r}", (name, "outcome", value)) for name, value in data.items())
        return
    for number, item in enumerate(data if isinstance(data, list) else [data], start=1):
        yield _build_row(item if isinstance(item, dict) else {}, path, f"entry {number}")


def _read_csv(text: str, path: Path) -> Iterator[_Row]:
    reader = csv.DictReader(io.StringIO(text))
    for row in reader:
        yield _build_row(row, path, f"line {reader.line_num}")


def _build_row(row: dict[str, Any], path: Path, place: str) -> _Row:
    run_id = next((row[name] for name in _ID_FIELDS if row.get(name) not in (None, "")), None)
    field = next((name for name in _OUTCOME_FIELDS if row.get(name) not in (None, "")), None)
    if run_id is None or field is None:
        raise ConfigError(f"{path}, {place}: no run id or no outcome; {_FORMS}")
    return place, (str(run_id), field, row[field])


def _parse_outcome(name: str, value: Any, pass_score: float) -> bool | None:
    """Return whether the run failed; None if the value is not an outcome."""
    word = str(value).strip().lower()
    if name == "failed":
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(word)
    if word in _WORDS:
        return _WORDS[word]
    try:
        score = float(word)
    except ValueError:
        return None
    return score < pass_score if score == score else None
