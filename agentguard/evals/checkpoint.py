"""Checkpoints of an evaluation on disk; an interrupted evaluation continues from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from agentguard.evals.prediction import Prediction
from agentguard.trajectory.model import Record
from agentguard.version import __version__

Key = tuple[int, int, str]
_PACKAGE = Path(__file__).resolve().parents[1]


class EvaluationCheckpoint:
    """Append-only JSON Lines file of predictions; a line cut short by a crash is ignored.

    Args:
        path: the file; None keeps everything in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.predictions: dict[Key, Prediction] = {}
        self.fit_seconds: dict[tuple[int, int], float] = {}
        self._file: BinaryIO | None = None
        if path is not None and path.exists():
            self._read(path)

    def add(self, prediction: Prediction) -> None:
        """Store a prediction and append it to the file."""
        self.predictions[prediction.repeat, prediction.fold, prediction.run] = prediction
        self._write(prediction.as_dict())

    def add_fit(self, repeat: int, fold: int, seconds: float) -> None:
        """Store the training time of a fold."""
        self.fit_seconds[repeat, fold] = seconds
        self._write({"repeat": repeat, "fold": fold, "fit_seconds": seconds})

    def close(self) -> None:
        """Close the file; a later `add` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove all predictions, in memory and on disk."""
        self.close()
        self.predictions.clear()
        self.fit_seconds.clear()
        if self.path is not None and self.path.exists():
            self.path.unlink()

    def _write(self, value: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        self._file.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            # Remove the torn line; otherwise the next entry would be appended to it.
            with path.open("r+b") as file:
                file.truncate(end)
        for line in content[:end].splitlines():
            try:
                self._load_entry(orjson.loads(line))
            except (orjson.JSONDecodeError, TypeError, KeyError):
                continue  # an unknown line: its prediction is computed again

    def _load_entry(self, value: dict[str, Any]) -> None:
        if "fit_seconds" in value:
            self.fit_seconds[value["repeat"], value["fold"]] = float(value["fit_seconds"])
            return
        prediction = Prediction.from_dict(value)
        self.predictions[prediction.repeat, prediction.fold, prediction.run] = prediction


def compute_records_checksum(records: Sequence[Record]) -> str:
    """Return the SHA-256, in hex, over the parsed records, labels included."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(
            orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS, default=_to_plain)
        )
    return digest.hexdigest()


def build_checkpoint_name(**facts: Any) -> str:
    """Return a short hash of the inputs of an evaluation: data, method, options and the code of this package.

    The code contributes size and time of its files, so that a changed method does not reuse old results.
    """
    code = sorted(
        (str(path.relative_to(_PACKAGE)), stat.st_size, stat.st_mtime_ns)
        for path in _PACKAGE.rglob("*")
        if path.suffix in {".py", ".skops", ".json", ".yaml"} and (stat := path.stat())
    )
    inputs = orjson.dumps([__version__, code, facts], option=orjson.OPT_SORT_KEYS, default=_to_plain)
    return hashlib.sha256(inputs).hexdigest()[:16]


def _to_plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
