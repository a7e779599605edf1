"""Statuses and reasons of tool results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ResultStatus(StrEnum):
    """Status of a tool result."""

    OK = "ok"
    ERROR = "error"
    EMPTY = "empty"
    UNUSABLE = "unusable"
    PARTIAL = "partial"


class ResultReason(StrEnum):
    """Reason for a status other than ok."""

    FLAGGED = "flagged"
    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    HTTP = "http"
    ERROR_OBJECT = "error_object"
    ERROR_TEXT = "error_text"
    TEST_FAILURE = "test_failure"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    DENIED = "denied"
    NO_ACTION = "no_action"
    NO_OUTPUT = "no_output"
    NO_MATCH = "no_match"
    BINARY = "binary"
    BLOCKED_PAGE = "blocked_page"
    TRUNCATED = "truncated"
    SOME_ERRORS = "some_errors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultClassification:
    """Status of a result; ``text[start:end]`` shows the reason and is empty for a usable result."""

    status: ResultStatus
    reason: ResultReason | None = None
    start: int = 0
    end: int = 0

    @property
    def is_error(self) -> bool:
        """True if the action failed."""
        return self.status is ResultStatus.ERROR


def build_error(reason: ResultReason, start: int, end: int) -> ResultClassification:
    """Build the classification of an error at ``text[start:end]``."""
    return ResultClassification(status=ResultStatus.ERROR, reason=reason, start=start, end=end)


def find_line_end(text: str, offset: int, limit: int = 160) -> int:
    """Return the end of the line at ``offset``, at most ``limit`` code points later."""
    end = text.find("\n", offset, offset + limit)
    return min(len(text), offset + limit) if end < 0 else end
