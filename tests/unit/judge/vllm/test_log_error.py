"""Cause of a failed start in a server's log."""

from __future__ import annotations

import pytest

from agentguard.judge.vllm.supervisor import find_log_error

ENGINE = """\
(EngineCore pid=7) ERROR 11-23 07:00:00 core.py:900] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-23 07:00:00 core.py:900] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-23 07:00:00 core.py:900] ValueError: retention is set but has no effect.
(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.
"""
USAGE = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --typo\n"


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (ENGINE, "ValueError: retention is set but has no effect."),
        (USAGE, "error: unrecognized arguments: --typo"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "OutOfMemoryError: CUDA out of memory."),
        ("INFO started\n", ""),
        ("", ""),
    ],
)
def test_log_error_is_the_cause_not_its_consequence(log: str, error: str) -> None:
    assert find_log_error(log) == error
