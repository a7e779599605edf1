"""``agentguard judge calibrate``: what people's judgements show of the probabilities of each method."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from agentguard.errors import StoreError

if TYPE_CHECKING:
    from agentguard.localize.corrected import Correction


def calibrate(
    url: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="A path or postgresql://...; AGENTGUARD_STORE, else .agentguard/store.db, if absent.",
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose judgements.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how people's judgements in a store correct the probabilities of diagnoses made with it.

    Nothing has to be switched on: `agentguard diagnose --store` and a guard with that store correct by
    themselves as soon as there are enough judgements. Exit status: 0 something is corrected, 1 there are
    too few judgements.
    """
    from agentguard.localize.corrected import corrections
    from agentguard.localize.feedback import truths
    from agentguard.store import Store
    from agentguard.store.url import resolve

    address = resolve(url)
    if address.path is not None and not address.path.exists():
        raise StoreError(f"there is no store {address}: make one with `agentguard store init`")
    with Store.open(url) as store:
        found = corrections(truths(store, tenant=tenant))
    if json:
        _emit(found)
    else:
        _show(found)
    raise typer.Exit(0 if any(one.corrects_outcomes or one.corrects_steps for one in found) else 1)


def _emit(found: tuple[Correction, ...]) -> None:
    plain = [
        {**asdict(one), "corrects_outcomes": one.corrects_outcomes, "corrects_steps": one.corrects_steps}
        for one in found
    ]
    sys.stdout.buffer.write(orjson.dumps(plain, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def _show(found: tuple[Correction, ...]) -> None:
    from agentguard.localize.corrected import MIN_EACH, MIN_OUTCOMES, MIN_STEPS

    console = Console()
    if not found:
        console.print("No diagnosis was judged yet: judge some with `agentguard view`.")
        return
    table = Table(
        "method",
        "failed",
        "passed",
        "slope",
        "intercept",
        "Brier score",
        "root causes",
        "temperature",
        box=None,
    )
    for one in found:
        brier = "-"
        if one.brier_before is not None and one.brier_after is not None:
            brier = f"{one.brier_before:.3f} -> {one.brier_after:.3f}"
        table.add_row(
            one.method,
            str(one.failed),
            str(one.passed),
            f"{one.slope:.2f}" if one.corrects_outcomes else "-",
            f"{one.intercept:+.2f}" if one.corrects_outcomes else "-",
            brier,
            str(one.steps),
            f"{one.temperature:.2f}" if one.corrects_steps else "-",
        )
    console.print(table)
    for one in found:
        if not one.corrects_outcomes:
            console.print(
                f"{one.method}: the probability of failure needs {MIN_OUTCOMES} judged outcomes, "
                f"{MIN_EACH} of each, and is left as it is",
                soft_wrap=True,
            )
        if not one.corrects_steps:
            console.print(
                f"{one.method}: the probabilities of steps need {MIN_STEPS} judged root causes, and are left "
                "as they are",
                soft_wrap=True,
            )
