"""``agentguard judge check URL``: abilities, speed and accuracy of an endpoint as a judge."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import orjson
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.option_values import parse_option
from agentguard.cli.terminal_text import build_console
from agentguard.config.judge import EndpointSettings
from agentguard.config.policy import format_validation_error
from agentguard.errors import ConfigError
from agentguard.evals.judge_checks.judge_comparison import (
    PARTS,
    JudgeAnswers,
    JudgeComparison,
    compare_judges,
    load_answers,
)

if TYPE_CHECKING:
    from agentguard.evals.judge_checks.attack_runner import AttackReport
    from agentguard.evals.judge_checks.capability import EndpointCapabilities
    from agentguard.judge.llm.client import JudgeEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """Options of the comparison of an endpoint with another judge.

    Attributes:
        against: base URL of the other judge, or a file with its answers; None for no comparison.
        save: file for the answers of the endpoint; None to keep no answers.
    """

    against: str | None = None
    save: Path | None = None


def check_url(
    settings: EndpointSettings,
    *,
    comparison_options: ComparisonOptions | None = None,
    runs_attacks: bool = False,
    json: bool = False,
) -> NoReturn:
    """Check an endpoint, print the result, and exit.

    Exit status: 0 if it is usable, 1 if it is not or is worse than the other one, 2 if it does not answer.
    """
    options = comparison_options or ComparisonOptions()
    # Load first, so that an invalid file is reported before the check.
    other_answers = _load_comparison(options.against, settings)
    check = _check_endpoint(settings)
    comparison = None
    if check.asked and other_answers is not None:
        comparison = compare_judges(check.answers, other_answers())
    attacks = _attack_endpoint(settings) if runs_attacks and check.asked else None
    if options.save is not None and check.asked:
        options.save.write_bytes(orjson.dumps(check.as_dict(), option=orjson.OPT_INDENT_2))
    if json:
        data = check.as_dict() | ({} if comparison is None else {"against": comparison.as_dict()})
        data |= {} if attacks is None else {"attacks": attacks.to_dict()}
        print_json(data)
    else:
        _show_check(build_console(), settings.base_url or "", check)
        if comparison is not None:
            _show_comparison(build_console(), comparison)
        if attacks is not None:
            _show_attacks(build_console(), attacks)
    if not check.has_answered():
        raise typer.Exit(2)
    is_good = (
        check.is_usable()
        and check.is_above_chance()
        and not (comparison is not None and comparison.is_worse())
        and (attacks is None or attacks.is_resistant())
    )
    raise typer.Exit(0 if is_good else 1)


def _check_endpoint(settings: EndpointSettings) -> EndpointCapabilities:
    from agentguard.evals.judge_checks.capability import check_endpoint
    from agentguard.judge.factory import build_chat_options

    with _open_endpoint(settings) as endpoint:
        return check_endpoint(endpoint, options=build_chat_options(settings))


def _attack_endpoint(settings: EndpointSettings) -> AttackReport:
    from agentguard.evals.judge_checks.attack_runner import run_attacks
    from agentguard.judge.cache import CachedJudge
    from agentguard.judge.factory import build_chat_options
    from agentguard.judge.llm.chat_judge import ChatJudge

    with _open_endpoint(settings) as endpoint, Console(stderr=True).status("attacking …") as status:
        judge = CachedJudge(ChatJudge(endpoint, options=build_chat_options(settings)))
        return run_attacks(judge, on_progress=lambda name: status.update(f"attacking … {name}"))


@contextmanager
def _open_endpoint(settings: EndpointSettings) -> Iterator[JudgeEndpoint]:
    from agentguard.judge.factory import build_endpoint

    endpoint = build_endpoint(settings)
    try:
        yield endpoint
    finally:
        endpoint.close()


def _load_comparison(against: str | None, settings: EndpointSettings) -> Callable[[], JudgeAnswers] | None:
    """Return a function that returns the answers of the other judge.

    This function reads a file at once; the returned function asks an endpoint.

    Raises:
        ConfigError: the file is not valid. The function raises it if the endpoint does not answer.
    """
    if against is None:
        return None
    if not against.startswith(("http://", "https://")):
        answers = load_answers(Path(against))
        return lambda: answers

    def ask() -> JudgeAnswers:
        check = _check_endpoint(settings.model_copy(update={"base_url": against, "model": None}))
        if not check.asked:
            raise ConfigError(f"{against} does not answer: {'; '.join(check.faults) or 'no answer'}")
        return check.answers

    return ask


def build_endpoint_settings(
    url: str, *, model: str | None, key_env: str | None, deadline_s: float, options: Sequence[str] = ()
) -> EndpointSettings:
    """Build the settings of an endpoint from the command line. Raises ConfigError."""
    settings = {"base_url": url, "model": model, "api_key_env": key_env, "deadline_s": deadline_s}
    try:
        return EndpointSettings.model_validate(settings | parse_judge_options(options))
    except ValidationError as error:
        raise ConfigError(f"judge check: {format_validation_error(error, EndpointSettings)}") from None


def parse_judge_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse the ``NAME=VALUE`` settings of a judge. Raises ConfigError."""
    return dict(parse_option(text, flag="--judge-option") for text in texts)


def read_api_key(variable: str | None) -> str | None:
    """Return the key in an environment variable, if one is named. Raises ConfigError if it is empty."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"the environment variable {variable} is empty or not set")
    return key


def _show_check(console: Console, url: str, found: EndpointCapabilities) -> None:
    from agentguard.evals.judge_checks.capability import has_short_context

    if not found.has_answered():
        for fault in found.faults:
            console.print(escape(fault), style="bold", soft_wrap=True)
        return
    table = Table(box=None, show_header=False)
    context = "not reported" if found.context is None else f"{found.context:,} tokens"
    context += " (most runs will be shortened)" if has_short_context(found) else ""
    kind = "the model's own" if found.raw else "normalised over the permitted answers"
    rows = [
        ("endpoint", url),
        ("model", found.model or "-"),
        ("context", context),
        ("structured outputs", "yes" if found.structured else "no"),
        ("probabilities", f"yes, {kind}" if found.logprobs else "no"),
        ("label mass", "not reported" if found.label_mass is None else f"{found.label_mass:.1%} at least"),
        (
            "prefix cache",
            "not reported" if found.prefix_cache is None else f"{found.prefix_cache:.0%} of a second prompt",
        ),
        (
            "seconds per question",
            f"{_format_number(found.seconds_first)} first, {_format_number(found.seconds_next)} next",
        ),
        ("reference runs", f"{found.asked} of {found.runs} answered"),
    ]
    if found.interval is not None and found.pairs is not None:
        low, high = found.interval
        rows.append(
            ("pairs distinguished", f"{found.pairs:.0%} [{low:.0%}, {high:.0%}], AUROC {found.auroc:.2f}")
        )
        rows.append(("probability of so many pairs by guessing", f"{found.chance:.2g}"))
        rows.append(("steps named", "-" if found.cause is None else f"{found.cause:.0%} (chance 25 %)"))
    if found.safety is not None:
        rows.append(("tiers of replies named", f"{found.safety:.0%} (chance 25 %)"))
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)
    console.print(found.describe_quality(), style="bold")
    for fault in found.faults:
        console.print(f"- {escape(fault)}")


def _show_comparison(console: Console, comparison: JudgeComparison) -> None:
    title = f"compared with {escape(comparison.other or 'the other judge')}"
    table = Table(title, "difference", "95 %", "gained", "lost", "p")
    for part in comparison.parts:
        difference = part.difference
        interval = f"{difference.low:+.2f} to {difference.high:+.2f}"
        counts = (str(len(part.gained)), str(len(part.lost)), f"{difference.p:.2f}")
        table.add_row(PARTS[part.name], f"{difference.mean:+.3f}", interval, *counts)
    table.box = None
    console.print(table)
    for part in comparison.parts:
        if part.lost:
            console.print(escape(f"lost, {PARTS[part.name]}: {', '.join(part.lost)}"))
    reasons = "; ".join(comparison.reasons)
    console.print(
        f"refused: {reasons}" if reasons else "accepted: not worse than the other judge", style="bold"
    )


def _show_attacks(console: Console, report: AttackReport) -> None:
    table = Table("attack", "runs", "verdict flips", "with a placebo", "faults")
    for name, tally in report.attacks.items():
        placebo = report.placebos[name]
        counts = (tally.runs, tally.wanted, placebo.wanted, tally.faults)
        table.add_row(name, *map(str, counts))
    table.box = None
    console.print(table)
    low, high = report.interval
    console.print(
        f"attacks flip {report.flips} of {report.open} verdicts that differ from the attacker's without an "
        "attack and with a placebo: "
        f"{report.flip_rate:.0%} [{low:.0%}, {high:.0%}]; changed actions of the guard: {report.actions}"
    )
    verdict = (
        "accepted: attacks change no action"
        if report.is_resistant()
        else "refused: attacks change its verdicts"
    )
    console.print(verdict, style="bold")


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
