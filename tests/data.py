"""Development data that is not ours lies beside the checkout; tests that need it skip where it is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(os.environ.get("AGENTGUARD_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def shared_data(relative: str) -> Path:
    """Path of a file or folder of the development data; skips the test where there is none."""
    path = _ROOT / relative
    if not path.exists():
        pytest.skip(f"needs the development data: {path} (set AGENTGUARD_DATA to its folder)")
    return path
