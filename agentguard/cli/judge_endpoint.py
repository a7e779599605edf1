"""``agentguard judge check URL``: what an endpoint is worth as a judge."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.errors import ConfigError

if TYPE_CHECKING:
    from agentguard.evals.endpoint.check import Check


def check_url(url: str, *, name: str | None, key_env: str | None, deadline_s: float, json: bool) -> NoReturn:
    """Check an endpoint, say what was found, and exit: 0 it can be used, 1 it should not be, 2 no answer."""
    from agentguard.evals.endpoint.check import check_endpoint
    from agentguard.judge.endpoint import Endpoint
    from agentguard.judge.wire import EndpointOptions

    options = EndpointOptions(deadline_s=deadline_s)
    endpoint = Endpoint(url, model=name, api_key=key_of(key_env), options=options)
    try:
        found = check_endpoint(endpoint, deadline_s=deadline_s)
    finally:
        endpoint.close()
    if json:
        sys.stdout.buffer.write(orjson.dumps(found.as_dict(), option=orjson.OPT_APPEND_NEWLINE))
    else:
        _show(Console(), url, found)
    if not found.asked:
        raise typer.Exit(2)
    raise typer.Exit(0 if found.usable() and found.above_chance() else 1)


def key_of(variable: str | None) -> str | None:
    """The key in an environment variable. Raises ConfigError if a variable is named and holds none."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"the environment variable {variable} holds no key")
    return key


def _show(console: Console, url: str, found: Check) -> None:
    from agentguard.evals.endpoint.check import short_context

    table = Table(box=None, show_header=False)
    context = "not told" if found.context is None else f"{found.context:,} tokens"
    context += " (most runs will be cut)" if short_context(found) else ""
    kind = "the model's own" if found.raw else "those after a mask, or none of other answers"
    rows = [
        ("endpoint", url),
        ("model", found.model or "-"),
        ("context", context),
        ("structured outputs", "yes" if found.structured else "no"),
        ("probabilities", f"yes, {kind}" if found.logprobs else "no"),
        (
            "prefix cache",
            "not told" if found.prefix_cache is None else f"{found.prefix_cache:.0%} of a second prompt",
        ),
        ("seconds a question", f"{_number(found.seconds_first)} first, {_number(found.seconds_next)} next"),
        ("canary runs", f"{found.asked} of {found.runs} answered"),
    ]
    if found.interval is not None and found.pairs is not None:
        low, high = found.interval
        rows.append(
            ("pairs told apart", f"{found.pairs:.0%} [{low:.0%}, {high:.0%}], AUROC {found.auroc:.2f}")
        )
        rows.append(("steps named", "-" if found.cause is None else f"{found.cause:.0%} (chance 25 %)"))
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)
    console.print(found.verdict(), style="bold")
    for fault in found.faults:
        console.print(f"- {escape(fault)}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
