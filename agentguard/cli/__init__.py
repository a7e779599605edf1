"""The command line. Each command group is a module of this package with ``register(app)``."""

from __future__ import annotations


def main() -> None:
    """Run the ``agentguard`` command."""
    import sys

    from agentguard.cli.app import build_app

    build_app(only_command=sys.argv[1] if len(sys.argv) > 1 else None)()
