"""Every error agentguard raises, under one root.

::

    AgentGuardError
    ├── ConfigError            a setting, option or policy is wrong
    │   └── UnknownPlugin      no plug-in of that name in a registry
    ├── InputError             something read from outside is wrong; says file, record, field, way out
    │   ├── FormatError        a trajectory that an importer cannot read
    │   ├── EventLogError      an event log that cannot be read or appended to
    │   └── TaxonomyError      a taxonomy or crosswalk file
    ├── JudgeError             a judge could not answer
    │   └── ModelFileError     a model file is missing, changed or does not match its card
    ├── EvaluationError        an evaluation that cannot be carried out as asked
    └── MissingExtra           an optional dependency is not installed

Messages are built from names, paths, positions and limits, never from the contents of a run, so that every
error is safe to log. ``code`` is stable and meant for programs.
"""

from __future__ import annotations


class AgentGuardError(Exception):
    """The root: catch this to catch everything agentguard raises on purpose."""

    code = "agentguard_error"


class ConfigError(AgentGuardError):
    """A setting, an option or a policy is wrong."""

    code = "config_error"


class UnknownPlugin(ConfigError):
    """No plug-in of that name is registered; the message lists those that are."""

    code = "unknown_plugin"


class InputError(AgentGuardError):
    """Something read from outside is wrong.

    Attributes:
        reason: what is wrong, in one clause.
        file: path or name of the source, if known.
        record: position of the record in the source, counted from 0, if known.
        field: dotted path of the field inside the record, if known.
        hint: the way out, if there is one.
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

    def located(self, *, file: str | None = None, record: int | None = None) -> InputError:
        """Return a copy of this error with the place filled in where it was not known."""
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


class JudgeError(AgentGuardError):
    """A judge could not answer."""

    code = "judge_error"


class ModelFileError(JudgeError):
    """A model file is missing, was changed, or does not match its card."""

    code = "model_file_error"


class EvaluationError(AgentGuardError):
    """An evaluation cannot be carried out as asked."""

    code = "evaluation_error"


class MissingExtra(AgentGuardError):
    """An optional dependency is not installed; the message has the command that installs it."""

    code = "missing_extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'agentguard[{extra}]'")
