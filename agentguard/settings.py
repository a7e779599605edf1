"""The policy: what a user configures, read once from YAML and validated.

::

    version: 1
    detectors:                      # by name: options, or false to switch one off
      exact_loop: {repeat: 4}
      goal_drift: false
    only: [exact_loop, tool_error]  # optional: just these detectors
    localizer: {name: embedded, risk: 0.3}
    detector_deadline_s: 0.5        # a detector that takes longer over one step counts as failed

Names and options of detectors and localizers are validated by the plug-ins they belong to, when those are
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentguard.errors import ConfigError

_MAX_BYTES = 1_000_000


class LocalizerSettings(BaseModel):
    """Which localizer, and its options: every key but ``name`` is passed to it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "embedded"

    def options(self) -> dict[str, Any]:
        """The options without the name."""
        return dict(self.model_extra or {})


class Policy(BaseModel):
    """A validated policy; frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    detectors: Mapping[str, Mapping[str, Any] | Literal[False] | None] = Field(default_factory=dict)
    only: tuple[str, ...] | None = None
    localizer: LocalizerSettings = LocalizerSettings()
    detector_deadline_s: Annotated[float, Field(gt=0, le=60)] = 0.5

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy from a YAML file. Raises ConfigError that names the file and the field."""
        file = Path(path)
        try:
            if file.stat().st_size > _MAX_BYTES:
                raise ConfigError(f"{file}: larger than {_MAX_BYTES:,} bytes, which no policy is")
            document = yaml.safe_load(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise ConfigError(f"{file}: not a YAML document{_mark(error)}") from None
        return cls.parse({} if document is None else document, source=str(file))

    @classmethod
    def parse(cls, document: object, *, source: str = "policy") -> Policy:
        """Validate a parsed policy. Raises ConfigError with every field that is wrong."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ConfigError(f"{source}: {_explain(error)}") from None


def _mark(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""


def _explain(error: ValidationError) -> str:
    known = ", ".join(Policy.model_fields)
    parts = []
    for item in error.errors(include_input=False, include_url=False):
        field = ".".join(str(part) for part in item["loc"]) or "the document"
        hint = f" (known: {known})" if item["type"] == "extra_forbidden" else ""
        parts.append(f"{field}: {item['msg']}{hint}")
    return "; ".join(parts)
