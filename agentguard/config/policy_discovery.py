"""Discovery of a project's policy: ``agentguard.yaml``, or ``[tool.agentguard]`` in ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from agentguard.config.policy import Policy
from agentguard.errors import ConfigError

POLICY_FILE: Final = "agentguard.yaml"
_ROOT_MARKER: Final = ".git"


def find_policy(folder: Path) -> tuple[Policy, Path] | None:
    """Return the policy of the project of a folder, and its file; None if there is no policy.

    The search covers the folder and its parents, up to the first one with a ``.git``. In one folder,
    ``agentguard.yaml`` has precedence.

    Raises:
        ConfigError: the policy is invalid; the message names its file and field.
    """
    for place in (folder, *folder.parents):
        if (file := place / POLICY_FILE).is_file():
            return Policy.load(file), file
        if (policy := _read_pyproject(project := place / "pyproject.toml")) is not None:
            return policy, project
        if (place / _ROOT_MARKER).exists():
            return None
    return None


def _read_pyproject(file: Path) -> Policy | None:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    tool = document.get("tool")
    table = tool.get("agentguard") if isinstance(tool, dict) else None
    return None if table is None else Policy.parse(table, source=f"{file}: tool.agentguard")
