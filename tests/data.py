"""Third-party development data beside the checkout; tests that need it are skipped if it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(os.environ.get("AGENTGUARD_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def shared_data(relative: str) -> Path:
    """Return the path of a file or folder of the development data; skip the test if it is missing."""
    path = _ROOT / relative
    if not path.exists():
        pytest.skip(f"needs the development data: {path} (set AGENTGUARD_DATA to its folder)")
    return path
