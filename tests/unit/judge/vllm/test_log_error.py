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
SPAWN = """\
(APIServer pid=6) WARNING 11-26 00:58:55 [system_utils.py:255] errors like `OSError: [Errno 24] Open`.
(APIServer pid=6) INFO 11-26 00:58:56 [core.py:1] No error: all is well.
    raise RuntimeError('''
RuntimeError: 
        An attempt has been made to start a new process.

(APIServer pid=6) INFO 11-26 00:59:30 [utils.py:628] [shutdown] Process manager: send sigterm
(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.
"""  # noqa: W291
USAGE = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --typo\n"


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (ENGINE, "ValueError: retention is set but has no effect."),
        (USAGE, "error: unrecognized arguments: --typo"),
        (SPAWN, "RuntimeError: An attempt has been made to start a new process."),
        ("torch.OutOfMemoryError: CUDA out of memory.", "OutOfMemoryError: CUDA out of memory."),
        ("INFO started\n", ""),
        ("", ""),
    ],
)
def test_log_error_is_the_cause_not_its_consequence(log: str, error: str) -> None:
    assert find_log_error(log) == error
