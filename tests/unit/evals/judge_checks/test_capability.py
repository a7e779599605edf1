"""Capability report of an endpoint: its features, and the accuracy of its model as a judge."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.evals.judge_checks.capability import (
    MAX_CHANCE,
    EndpointCapabilities,
    check_endpoint,
    compute_chance,
)
from agentguard.evals.judge_checks.reference_cases import build_reference_runs, build_safety_cases
from agentguard.judge.llm.chat_judge import ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from agentguard.judge.response_safety import SafetyTier, describe_tier
from tests.unit.judge.chat_server import Prefer, Script, closed_port, serving


def knowing(*, invert: bool = False) -> Prefer:
    """Return a judge that knows the canaries by their failed step."""
    wrong = {}
    for passed, failed in zip(build_reference_runs()[::2], build_reference_runs()[1::2], strict=True):
        assert failed.cause is not None
        step = failed.run.steps[failed.cause]
        said = step.content or step.observations[0].content
        wrong[passed.run.task] = (said, failed.cause)

    def prefer(prompt: str, label: str) -> float:
        if "How safe is it" in prompt:
            tier = next(
                one.tier for one in build_safety_cases() if f"| {one.run.steps[-1].content}" in prompt
            )
            return 0.7 if f"\n{label}: {describe_tier(tier)}" in prompt else 0.05
        task = next(one for one in wrong if one in prompt)
        said, cause = wrong[task]
        failed = f"| {said}" in prompt
        if "Did the run fail" in prompt:
            yes = failed is not invert
            return 0.8 if (label == "A") is yes else 0.1
        options = re.findall(r"^([A-T]): (\d+)$", prompt, re.MULTILINE)
        return 0.7 if (label, str(cause)) in options else 0.05

    return prefer


def check(script: Script) -> EndpointCapabilities:
    with serving(script) as (url, _):
        endpoint = JudgeEndpoint(url, options=EndpointOptions(deadline_s=10))
        try:
            return check_endpoint(endpoint, options=ChatOptions(deadline_s=10))
        finally:
            endpoint.close()


def test_canaries_are_pairs_that_differ_only_in_the_outcome() -> None:
    runs = build_reference_runs()
    assert len(runs) == 48
    assert len({one.run.id for one in runs}) == 48
    for passed, failed in zip(runs[::2], runs[1::2], strict=True):
        assert (passed.failed, failed.failed) == (False, True)
        assert passed.run.task == failed.run.task
        assert failed.cause is not None
        differ = [
            i
            for i, (a, b) in enumerate(zip(passed.run.steps, failed.run.steps, strict=True))
            if (a.content, [o.content for o in a.observations])
            != (b.content, [o.content for o in b.observations])
        ]
        assert differ == [failed.cause]


def test_capable_model_is_reported_as_such() -> None:
    found = check(Script(prefer=knowing(), writes='{"text": "yes"}'))
    assert (found.pairs, found.auroc, found.cause) == (1.0, 1.0, 1.0)
    assert found.is_usable()
    assert found.is_above_chance()
    assert found.raw
    assert found.context == 4_096
    assert "distinguishes failed runs" in found.describe_quality()


def test_replies_of_every_tier_are_checked() -> None:
    canaries = build_safety_cases()
    assert {one.tier for one in canaries} == set(SafetyTier)
    assert len({one.run.id for one in canaries}) == len(canaries) == 18
    found = check(Script(prefer=knowing(), writes='{"text": "yes"}'))
    assert found.safety == 1.0
    assert len(found.answers.right) == 48 + 24 + 18
    assert found.answers.rated[f"safety:{canaries[5].run.id}"] is SafetyTier.UNSAFE


def test_random_model_and_model_below_chance_are_reported() -> None:
    coin = check(Script(writes='{"text": "yes"}'))
    assert coin.pairs == 0.5
    assert "not better than chance" in coin.describe_quality()
    inverted = check(Script(prefer=knowing(invert=True), writes='{"text": "yes"}'))
    assert inverted.pairs == 0.0
    assert "worse than chance" in inverted.describe_quality()
    assert not inverted.is_above_chance()


def test_guessing_judge_is_refused_with_high_probability() -> None:
    pairs = len(build_reference_runs()) // 2
    accepted = [won for won in range(pairs + 1) if compute_chance(won, pairs) <= MAX_CHANCE]
    probability = sum(math.comb(pairs, won) for won in accepted) / 2**pairs
    assert probability <= MAX_CHANCE
    by_good_judge = sum(math.comb(pairs, won) * 0.9**won * 0.1 ** (pairs - won) for won in accepted)
    assert by_good_judge > 0.95


@pytest.mark.parametrize(
    ("won", "accepted"), [(24, True), (19, True), (18.5, False), (12, False), (0, False)]
)
def test_judge_is_above_chance_from_the_binomial_limit(won: float, accepted: bool) -> None:
    found = EndpointCapabilities(pairs=won / 24, interval=(0.0, 1.0), chance=compute_chance(won, 24))
    assert found.is_above_chance() is accepted


def test_missing_endpoint_features_are_reported() -> None:
    found = check(Script(logprobs=False))
    assert not found.logprobs
    assert not found.is_usable()
    assert found.asked == 0
    assert any("no_probabilities" in fault for fault in found.faults)


def test_endpoint_with_little_label_mass_answers_and_is_not_usable() -> None:
    with serving(Script(prefer=lambda prompt, label: 0.001, writes='{"text": "yes"}')) as (url, _):
        ended = CliRunner().invoke(build_app(), ["judge", "check", url, "--json"])
    assert ended.exit_code == 1, "it answers, and no answer counts"
    told = json.loads(ended.stdout)
    assert (told["asked"], told["logprobs"], told["raw"]) == (0, True, True)
    assert told["faults"][0].startswith("label_mass: the options have ")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--judge-model", "gpt-x"], "no_model: the endpoint answered 404 for the model 'gpt-x'"),
        ([], "refused: the endpoint answered 401"),
    ],
)
def test_endpoint_that_cannot_be_asked_is_reported_without_a_table(options: list[str], text: str) -> None:
    with serving(Script(always="401" if not options else None)) as (url, _):
        ended = CliRunner().invoke(build_app(), ["judge", "check", url, *options])
    assert ended.exit_code == 2
    assert text in ended.output
    assert "reference runs" not in ended.output


def test_unreachable_endpoint_has_exit_status_2(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}/v1"
    ended = CliRunner().invoke(build_app(), ["judge", "check", url, "--json"])
    assert ended.exit_code == 2
    told = json.loads(ended.stdout)
    assert told["model"] == ""
    assert "unreachable" in told["faults"][0]


@pytest.mark.parametrize(("invert", "status"), [(False, 0), (True, 1)])
def test_command_prints_report_and_exit_status_depends_on_it(invert: bool, status: int) -> None:
    with serving(Script(prefer=knowing(invert=invert), writes='{"text": "yes"}')) as (url, _):
        ended = CliRunner().invoke(build_app(), ["judge", "check", url])
    assert ended.exit_code == status
    assert "reference runs" in ended.output
    assert "48 of 48 answered" in ended.output


def test_missing_key_variable_is_rejected() -> None:
    ended = CliRunner().invoke(
        build_app(), ["judge", "check", "http://127.0.0.1:1/v1", "--api-key-env", "NO_SUCH"]
    )
    assert ended.exit_code == 2
    assert "NO_SUCH" in ended.output
