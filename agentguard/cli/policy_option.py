"""Policy of a command: the file of ``--policy``, else that of the project."""

from __future__ import annotations

from pathlib import Path

import typer

from agentguard.config.policy import Policy
from agentguard.config.policy_discovery import find_policy
from agentguard.schemata.persistence import resolve_location


def load_policy(path: Path | None, store: str | None = None) -> Policy:
    """Return the policy of a file, else that of the project, else the default one.

    The file of a project's policy is printed on standard error. The address of a store replaces
    ``schemata: true``.
    """
    policy = _find_policy(path)
    return policy.model_copy(update={"schemata": resolve_location(policy.schemata, store)})


def raise_judge_concurrency(policy: Policy, jobs: int) -> Policy:
    """Return the policy with a judge that serves at least ``jobs`` calls at once."""
    if policy.judge is None or policy.judge.max_concurrent >= jobs:
        return policy
    return policy.model_copy(update={"judge": policy.judge.model_copy(update={"max_concurrent": jobs})})


def _find_policy(path: Path | None) -> Policy:
    if path is not None:
        return Policy.load(path)
    found = find_policy(Path.cwd())
    if found is None:
        return Policy()
    typer.echo(f"policy: {found[1]}", err=True)
    return found[0]
