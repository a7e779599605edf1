"""``agentguard judge``: train the embedded judge, read its card, check its file; serve a chat judge."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.judge_endpoint import ComparisonOptions, build_endpoint_settings, check_url
from agentguard.cli.judge_serve import serve
from agentguard.cli.store_access import StoreUrl, open_store
from agentguard.errors import ConfigError, ModelFileError
from agentguard.quantity import format_quantity

if TYPE_CHECKING:
    from agentguard.judge.embedded.label_counts import LabelCounts
    from agentguard.localize.recalibration import Recalibration


def calibrate(
    url: StoreUrl = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the labels.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how the labels in a store correct the probabilities of its diagnoses.

    `agentguard diagnose --store` and a guard with that store apply the correction as soon as there are enough
    labels. Exit status: 0 if there is a correction, 1 if there are too few labels.
    """
    from agentguard.localize.human_labels import iter_run_labels
    from agentguard.localize.recalibration import fit_recalibrations

    with open_store(url) as store:
        corrections = fit_recalibrations(iter_run_labels(store, tenant=tenant))
    if json:
        _print_corrections_json(corrections)
    else:
        _show_corrections(corrections)
    raise typer.Exit(
        0
        if any(correction.has_enough_outcomes or correction.has_enough_steps for correction in corrections)
        else 1
    )


def _print_corrections_json(corrections: tuple[Recalibration, ...]) -> None:
    rows = [
        {
            **asdict(correction),
            "corrects_outcomes": correction.has_enough_outcomes,
            "corrects_steps": correction.has_enough_steps,
        }
        for correction in corrections
    ]
    print_json(rows, is_indented=True)


def _show_corrections(corrections: tuple[Recalibration, ...]) -> None:
    from agentguard.localize.recalibration import MIN_LABELS_PER_OUTCOME, MIN_OUTCOME_LABELS, MIN_STEP_LABELS

    console = Console()
    if not corrections:
        console.print("no diagnosis has a label yet: label some in `agentguard view`")
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
    for one in corrections:
        brier = "-"
        if one.brier_before is not None and one.brier_after is not None:
            brier = f"{one.brier_before:.3f} -> {one.brier_after:.3f}"
        table.add_row(
            one.method,
            str(one.failed_count),
            str(one.passed_count),
            f"{one.slope:.2f}" if one.has_enough_outcomes else "-",
            f"{one.intercept:+.2f}" if one.has_enough_outcomes else "-",
            brier,
            str(one.step_count),
            f"{one.temperature:.2f}" if one.has_enough_steps else "-",
        )
    console.print(table)
    for one in corrections:
        if not one.has_enough_outcomes:
            console.print(
                f"{one.method}: the probability of failure needs {MIN_OUTCOME_LABELS} judged outcomes, "
                f"{MIN_LABELS_PER_OUTCOME} of each; it is unchanged",
                soft_wrap=True,
            )
        if not one.has_enough_steps:
            console.print(
                f"{one.method}: the probabilities of steps need {MIN_STEP_LABELS} judged root causes; "
                "they are unchanged",
                soft_wrap=True,
            )


Folder = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Folder of a model; by default the included one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True, help="Train, describe and check the embedded judge; serve a judge with vLLM."
    )
    group.command()(train)
    group.command()(info)
    group.command()(check)
    group.command()(calibrate)
    group.command(context_settings={"allow_extra_args": True})(serve)
    app.add_typer(group, name="judge")


def train(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Files and folders of annotated runs.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the model and its card.")
    ],
    format: Annotated[str | None, typer.Option(help="Format of the runs; recognised by default.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of the cross-validation for the card.")] = 2,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Model whose other parts are reused; by default the included one.",
        ),
    ] = None,
    transfer_only: Annotated[
        bool,
        typer.Option("--transfer-only", help="Learn only the part for unknown agents; give several systems."),
    ] = False,
    scored: Annotated[
        bool,
        typer.Option("--scores/--no-scores", help="Measure scores for the card."),
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of training.")] = 0,
    json: Json = False,
) -> None:
    """Train a model on annotated runs and write it with its card. The same data and seed give the same file.

    The runs of each agent make a specialist: 20 root causes train its ranking of steps; 20 runs with an
    outcome, at least 5 of them failed and 5 passed, train its outcome model. The part for unknown agents and
    the specialists of the base model are kept. If no agent has enough labels, no model is written.

    Training takes half a minute for several hundred runs; the scores of the card take some minutes more.
    """
    from agentguard.cli.judge_model_card import (
        LIMITS,
        compute_scores,
        merge_card_data,
        read_source,
        require_specialist,
    )
    from agentguard.judge.embedded.label_counts import count_labels
    from agentguard.judge.embedded.model_card import load_card
    from agentguard.judge.embedded.model_io import load_model, save_model
    from agentguard.judge.embedded.training import (
        build_transfer_examples,
        fit_transferable_model,
        train_model,
    )

    agents: tuple[LabelCounts, ...] = ()
    sources = [read_source(path, format=format) for path in runs]
    _print_status(f"training on {format_quantity(sum(len(source.records) for source in sources), 'run')}")
    records = [record for source in sources for record in source.records]
    systems = [system for source in sources for system in source.name_systems()]
    if transfer_only:
        if base is not None:
            raise ConfigError("--transfer-only keeps no part of a base model: leave --base out")
        model, base_data = fit_transferable_model(build_transfer_examples(records, systems)), []
    else:
        base_model = load_model(base)
        model = train_model(records, systems=systems, base=base_model, seed=seed)
        base_data = load_card(base)["data"]
        agents = count_labels(records, systems)
        require_specialist(len(model.specialists) - len(base_model.specialists), agents, _print_status)
    card: dict[str, Any] = {
        "seed": seed,
        "data": merge_card_data([*(source.as_dict() for source in sources), *base_data]),
        "kinds": [
            {
                "structure": source.kind.key,
                "runs": source.runs,
                "ranks_steps": source.ranker is not None,
                "predicts_outcomes": source.outcome is not None,
            }
            for source in model.specialists
        ],
        "agents": [one.as_dict() for one in agents],
        "scores": compute_scores(sources, repeats=repeats, report_progress=_print_status) if scored else [],
        "limits": list(LIMITS),
    }
    full_card = save_model(model, output, card)
    _print_status(f"wrote {full_card['bytes']:,} bytes to {output}")
    _show_check(full_card, json=json)


def info(model: Folder = None, json: Json = False) -> None:
    """Show the card of a model: data, checksum, scores, limits."""
    from agentguard.judge.embedded.model_card import load_card

    _show_check(load_card(model), json=json)


def check(
    url: Annotated[
        str | None, typer.Argument(help="Base URL of an endpoint to check instead, with /v1.")
    ] = None,
    model: Folder = None,
    name: Annotated[
        str | None,
        typer.Option("--judge-model", help="Model of the endpoint; by default the first that it lists."),
    ] = None,
    key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="Environment variable with its key.")
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="Time limit of one question, in seconds."),
    ] = 60.0,
    judge_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Setting of the judge as in a policy, e.g. reasoning_tokens=2048; repeatable.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE", help="Compare with this endpoint, or with a file that --save wrote."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the answers of the endpoint for a later comparison."),
    ] = None,
    attacks: Annotated[
        bool,
        typer.Option("--attacks", help="Also inject prompts into runs, and count the changed verdicts."),
    ] = False,
    json: Json = False,
) -> None:
    """Check the file of the embedded judge, or the abilities, speed and accuracy of an endpoint.

    A model file is sound if it matches its card, contains only trusted types, and answers. An endpoint judges
    48 small runs with known outcomes, and the safety of some replies. With --against, the command refuses an
    endpoint that is worse than another one, e.g. than itself before fine-tuning.

    Exit status: 0 if the model is sound or the endpoint usable; 1 if an endpoint answers and is not usable,
    does not judge above chance, is worse than the other one, or follows attacks; 2 if the model is not sound
    or the endpoint does not answer.
    """
    if url is not None:
        endpoint_settings = build_endpoint_settings(
            url, model=name, key_env=key_env, deadline_s=timeout_s, options=judge_option or []
        )
        check_url(
            endpoint_settings,
            comparison_options=ComparisonOptions(against=against, save=save),
            runs_attacks=attacks,
            json=json,
        )
    if against is not None or save is not None or attacks:
        raise ConfigError("--against, --save and --attacks need the address of an endpoint")
    from agentguard.judge.embedded.judge import verify_model

    facts = verify_model(model)
    if json:
        print_json(facts, is_indented=True)
        return
    for name, value in facts.items():
        typer.echo(f"{name}: {value}")


def _print_status(text: str) -> None:
    typer.echo(text, err=True)


def _show_check(check_result: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(check_result, is_indented=True)
        return
    try:
        _print_check(Console(), check_result)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"the card lacks a part: {type(error).__name__} {error}") from None


def _print_check(console: Console, check_result: dict[str, Any]) -> None:
    console.print(
        f"[bold]embedded judge[/] of agentguard {check_result['agentguard']}, {check_result['bytes']:,} bytes"
    )
    console.print(f"sha256 {check_result['sha256']}", highlight=False, soft_wrap=True)
    console.print(
        f"features: {len(check_result['features']['steps'])} a step, {len(check_result['features']['runs'])} a run"  # noqa: E501
    )
    table = Table(
        "trained on", "runs", "failed", "passed", "root causes", "licence", box=None, header_style="bold"
    )
    for one in check_result["data"]:
        counts = (str(one[key]) for key in ("runs", "failed", "passed", "root_causes"))
        table.add_row(escape(one["name"]), *counts, escape(one["licence"] or "unknown"))
    console.print(table)
    if agents := check_result.get("agents"):
        console.print(_format_agents(agents))
    if check_result["scores"]:
        console.print(_format_scores(check_result["scores"]))
    for limit in check_result["limits"]:
        console.print(f"- {escape(limit)}")


def _format_agents(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "agent", "failed", "passed", "root causes", "ranking", "outcome", box=None, header_style="bold"
    )
    states = {True: "trained", False: "too few labels", None: "unknown"}
    for row in rows:
        counts = (str(row[key]) for key in ("failed", "passed", "root_causes"))
        # A card of an earlier version may lack a part.
        parts = (states[row.get(key)] for key in ("ranks_steps", "predicts_outcomes"))
        table.add_row(escape(row["agent"]), *counts, *parts)
    return table


def _format_scores(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "scored on", "after", "n", "step", "95 %", "agent", "top 3", "AUROC", box=None, header_style="bold"
    )
    for row in rows:
        after = (
            "cross-validation" if row["setting"] == "cross_validated" else f"training on {row['trained_on']}"
        )
        low, high = row["wilson95"]["step"] if "wilson95" in row else (None, None)
        interval = f"{low:.0%} to {high:.0%}" if low is not None else "-"
        cells = (
            _format_share(row.get("agent_accuracy")),
            _format_share(row.get("top", {}).get("3")),
            _format_share(row.get("auroc")),
        )
        table.add_row(
            escape(row["data"]),
            escape(after),
            str(row["n"]),
            _format_share(row.get("step_accuracy")),
            interval,
            *cells,
        )
    return table


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
