"""The command line. Each command group is a module of this package with ``register(app)``."""

from __future__ import annotations


def main() -> None:
    """Run the ``agentguard`` command."""
    from agentguard.cli.app import build

    build()()
