"""Saved evaluations in files and folders, with a cache of their contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentguard.errors import FormatError
from agentguard.evals.result import Evaluation
from agentguard.evals.result_file import ResultFile, find_result_files, read_result_file
from agentguard_server.viewer.data.file_cache import FileCache


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFile:
    """Evaluation file with its content, or the reason why it cannot be read."""

    name: str
    result_file: ResultFile | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSelection:
    """Evaluated method of a result file; ``ref`` identifies it in a URL."""

    result_file: ResultFile
    result: Evaluation

    @property
    def ref(self) -> str:
        """Return ``<id of the evaluation>:<method>``."""
        return f"{self.result_file.id}:{self.result.method}"


class EvaluationFiles:
    """Evaluations in files and folders; safe to use from several threads.

    Args:
        paths: files and folders, searched again on each call.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._cache = FileCache(_read_evaluation)

    def list_files(self) -> tuple[EvaluationFile, ...]:
        """Return all evaluations, latest first, without duplicates."""
        ids: set[str] = set()
        files = []
        for path in find_result_files(self._paths):
            one = self._read(path)
            if one.result_file is None or one.result_file.id not in ids:
                files.append(one)
            if one.result_file is not None:
                ids.add(one.result_file.id)
        return tuple(sorted(files, key=lambda one: -(one.result_file.made_at if one.result_file else 0.0)))

    def find_file(self, id: str) -> ResultFile | None:
        """Return the evaluation with an id, or None."""
        return next(
            (
                one.result_file
                for one in self.list_files()
                if one.result_file is not None and one.result_file.id == id
            ),
            None,
        )

    def select_method(self, ref: str) -> MethodSelection | None:
        """Return the method with a ``ref``, or None; a ``ref`` without a method selects the first method."""
        id, _, method = ref.partition(":")
        result_file = self.find_file(id)
        if result_file is None:
            return None
        result = result_file.find_method(method) if method else result_file.results[0]
        return None if result is None else MethodSelection(result_file=result_file, result=result)

    def _read(self, path: Path) -> EvaluationFile:
        """Read a file, or return the cached content if its size and modification time are unchanged."""
        try:
            return self._cache.read(path)
        except OSError as error:
            return EvaluationFile(name=path.name, problem=str(error.strerror))


def _read_evaluation(path: Path) -> EvaluationFile:
    try:
        return EvaluationFile(name=path.name, result_file=read_result_file(path))
    except FormatError as error:
        return EvaluationFile(name=path.name, problem=error.reason if not error.field else str(error))
