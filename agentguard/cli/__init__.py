"""The command line. Each command group is a module of this package with ``register(app)``."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the ``agentguard`` command; its output is UTF-8 on every platform."""
    from agentguard.cli.app import build_app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    build_app()()
