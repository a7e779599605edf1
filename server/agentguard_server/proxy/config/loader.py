"""Loader of the configuration: a file, and options of the command line that override it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agentguard.config.policy import load_yaml
from agentguard.errors import ConfigError
from agentguard_server.proxy.config.schema import ProxySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLoader:
    """Source of the configuration, for the start and for reloads.

    Attributes:
        file: path of a YAML file; None if the command line is the only source.
        overrides: sections, or fields of sections, that override the file.
    """

    file: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> ProxySettings:
        """Read and validate the configuration. Raises ConfigError that lists every invalid field."""
        if self.file is None:
            return ProxySettings.parse(dict(self.overrides), source="the command line")
        document = load_yaml(self.file)
        if not isinstance(document, dict):
            raise ConfigError(f"{self.file}: expected a mapping of sections")
        guard = document.get("guard")
        if isinstance(guard, str):
            guard = {"policy": guard}
        if isinstance(guard, dict) and isinstance(guard.get("policy"), str):
            document["guard"] = {**guard, "policy": str(self.file.parent / guard["policy"])}
        return ProxySettings.parse(merge_sections(document, self.overrides), source=str(self.file))


def merge_sections(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with overrides: sections are merged field by field, other values are replaced."""
    result = dict(base)
    for name, value in overrides.items():
        old = result.get(name)
        sections = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[name] = {**cast(Mapping[str, Any], old), **value} if sections else value
    return result
