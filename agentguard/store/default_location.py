"""Location of the default store, without a database library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ENVIRONMENT_VARIABLE: Final = "AGENTGUARD_STORE"
DEFAULT_PATH: Final = Path(".agentguard") / "store.db"


def find_default_location(environ: Mapping[str, str] | None = None) -> str | Path:
    """Return ``AGENTGUARD_STORE``, else ``.agentguard/store.db``."""
    return (os.environ if environ is None else environ).get(ENVIRONMENT_VARIABLE) or DEFAULT_PATH
