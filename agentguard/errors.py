"""Errors of agentguard, with one root class.

::

    AgentGuardError
    ├── ConfigError            a setting, option or policy is wrong
    │   └── UnknownPlugin      a registry has no plug-in of that name
    ├── InputError             external input is wrong; has file, record, field, remedy
    │   ├── FormatError        a trajectory that an importer cannot read
    │   ├── EventLogError      an event log that cannot be read or appended to
    │   ├── TaxonomyError      a taxonomy or crosswalk file
    │   └── BundleError        a bundle that cannot be read or written
    ├── ReplayMismatch         a replayed agent sent a request that is not in the bundle
    ├── JudgeError             a judge could not answer
    │   └── ModelFileError     a model file is missing, changed or does not match its card
    ├── RecoveryError          a recovery that cannot be carried out, or a run that the guard stopped
    │   └── RunStopped         the guard ended the run; the message is the reason
    ├── EvaluationError        an evaluation that cannot be carried out as requested
    ├── StoreError             the store of runs and of learnt schemata is invalid, or an operation on it
    │   ├── StoreVersion       the database was created by another version of agentguard
    │   ├── StoreUnavailable   the database cannot be reached, read or written now
    │   ├── StoreTimeout       rows were not written in the time allowed; they are still queued
    │   └── RowsLost           rows that will not be written
    ├── ResilienceError        a call to an endpoint was not sent, or failed; has the stage that it reached
    │   ├── BackendError       the endpoint refused, failed, or broke off
    │   ├── DeadlineExceeded   the deadline of the call has passed
    │   ├── Stalled            a stream made no progress in its time
    │   ├── CircuitOpen        not sent: the endpoint failed too often recently
    │   ├── Overloaded         not sent: the work cannot be done in time
    │   └── RetriesExhausted   all permitted attempts failed
    └── MissingExtra           an optional dependency is not installed

Messages contain names, paths, positions and limits, never the contents of a run, so that every error is safe
to log. ``code`` is stable and intended for programs.
"""

from __future__ import annotations

from typing import Literal

Stage = Literal["unsent", "sent", "committed"]
"""Progress of a call: not sent; the endpoint may have acted; the caller has a part of the answer."""


class AgentGuardError(Exception):
    """Root class: catch it to catch every error that agentguard raises on purpose."""

    code = "agentguard_error"


class ConfigError(AgentGuardError):
    """A setting, an option or a policy is wrong."""

    code = "config_error"


class UnknownPlugin(ConfigError):
    """The registry has no plug-in of that name; the message lists the known names."""

    code = "unknown_plugin"


class InputError(AgentGuardError):
    """External input is wrong.

    Attributes:
        reason: the problem, in one clause.
        file: path or name of the source, if known.
        record: position of the record in the source, counted from 0, if known.
        field: dotted path of the field inside the record, if known.
        hint: a remedy, if known.
    """

    code = "input_error"

    def __init__(
        self,
        reason: str,
        *,
        file: str | None = None,
        record: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.reason, self.file, self.record, self.field, self.hint = reason, file, record, field, hint
        super().__init__(reason)

    def __str__(self) -> str:
        place = [self.file] if self.file else []
        if self.record is not None:
            place.append(f"record {self.record}")
        if self.field:
            place.append(f"field {self.field}")
        text = f"{', '.join(place)}: {self.reason}" if place else self.reason
        return f"{text} ({self.hint})" if self.hint else text

    def with_location(self, *, file: str | None = None, record: int | None = None) -> InputError:
        """Return a copy of this error with missing parts of the location filled in."""
        return type(self)(
            self.reason,
            file=self.file or file,
            record=self.record if self.record is not None else record,
            field=self.field,
            hint=self.hint,
        )


class FormatError(InputError):
    """A trajectory that an importer cannot read."""

    code = "format_error"


class EventLogError(InputError):
    """An event log that cannot be read or appended to."""

    code = "event_log_error"


class TaxonomyError(InputError):
    """A taxonomy or crosswalk file that is not valid."""

    code = "taxonomy_error"


class BundleError(InputError):
    """A bundle that cannot be read or written."""

    code = "bundle_error"


class ReplayMismatch(AgentGuardError):
    """A replayed agent sent a request that is not in the bundle."""

    code = "replay_mismatch"


class JudgeError(AgentGuardError):
    """A judge could not answer."""

    code = "judge_error"


class ModelFileError(JudgeError):
    """A model file is missing, was changed, or does not match its card."""

    code = "model_file_error"


class RecoveryError(AgentGuardError):
    """A recovery cannot be carried out as planned."""

    code = "recovery_error"


class RunStopped(RecoveryError):
    """The guard ended the run; the message is the reason."""

    code = "run_stopped"


class EvaluationError(AgentGuardError):
    """An evaluation cannot be carried out as requested."""

    code = "evaluation_error"


class ResilienceError(AgentGuardError):
    """A call to an endpoint was not sent, or failed.

    Attributes:
        reason: the problem, in one clause, without contents of the request or the answer.
        stage: progress of the call, which decides whether it may be retried.
        retry_after_s: seconds after which it may be retried, if known; negative: do not retry.
    """

    code = "resilience_error"

    def __init__(self, reason: str, *, stage: Stage = "unsent", retry_after_s: float | None = None) -> None:
        self.reason, self.stage, self.retry_after_s = reason, stage, retry_after_s
        super().__init__(reason)


class BackendError(ResilienceError):
    """The endpoint refused the call, failed, or broke off; ``status`` is its HTTP status if it gave one."""

    code = "backend_error"

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        stage: Stage = "sent",
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        super().__init__(reason, stage=stage, retry_after_s=retry_after_s)


class DeadlineExceeded(ResilienceError):
    """The deadline of the call, for all its attempts and waits, has passed."""

    code = "deadline_exceeded"


class Stalled(ResilienceError):
    """A stream delivered only heartbeats, or nothing, for longer than permitted."""

    code = "stalled"


class CircuitOpen(ResilienceError):
    """The call was not sent, because the endpoint failed too often recently."""

    code = "circuit_open"


class Overloaded(ResilienceError):
    """The call was not sent, because the pending work cannot be done in time."""

    code = "overloaded"


class RetriesExhausted(ResilienceError):
    """All permitted attempts of the call failed.

    Attributes:
        attempts: number of attempts.
        last: the error of the last attempt.
    """

    code = "retries_exhausted"

    def __init__(self, reason: str, *, attempts: int, last: ResilienceError) -> None:
        self.attempts, self.last = attempts, last
        super().__init__(
            f"{reason} after {attempts} attempts, the last error: {last}",
            stage=last.stage,
            retry_after_s=last.retry_after_s,
        )


class StoreError(AgentGuardError):
    """The store or an operation on it is invalid."""

    code = "store_error"


class StoreVersion(StoreError):
    """The database was created by another version of agentguard; the message contains the remedy."""

    code = "store_version"


class StoreUnavailable(StoreError):
    """The database cannot be reached, read or written now."""

    code = "store_unavailable"


class StoreTimeout(StoreError):
    """Rows were not written in the time allowed; they are still queued."""

    code = "store_timeout"


class RowsLost(StoreError):
    """Rows that will not be written: the database refused them, or the queue was full."""

    code = "rows_lost"


class MissingExtra(AgentGuardError):
    """An optional dependency is not installed; the message has the command that installs it."""

    code = "missing_extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'agentguard[{extra}]'")


def describe_error(error: Exception) -> str:
    """Return the class name of an exception, with the message of an `AgentGuardError`.

    The message of another exception may contain any text of a run or of a plug-in.
    """
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, AgentGuardError) else name
