"""The baselines on third-party annotated runs, if available: separately verifiable figures."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.evals.datasets.dataset import load_dataset
from agentguard.evals.evaluate import evaluate
from tests.data import shared_data


@pytest.mark.parametrize(
    ("part", "n", "two_line", "last_step"),
    [
        ("Algorithm-Generated", 97, (0.38, 0.43, 0.61, 0.67), (0.01, 0.38)),
        ("Hand-Crafted", 45, (0.19, 0.23, 0.58, 0.62), (0.155, 0.577)),
    ],
)
def test_baselines_match_known_figures_on_who_and_when(
    part: str, n: int, two_line: tuple[float, ...], last_step: tuple[float, float]
) -> None:
    data = load_dataset("who_and_when", [shared_data(f"who_and_when/{part}")])
    result = evaluate(data, "two_line", cv="question", repeats=1)
    assert (result.n, len(data.broken)) == (n, 0)
    where, last = result.localization, result.baselines["last_step"].localization
    assert where is not None
    assert last is not None
    low, high, agent_low, agent_high = two_line
    assert low <= where.step.mean <= high
    assert agent_low <= where.agent.mean <= agent_high
    assert (last.step.mean, last.agent.mean) == pytest.approx(last_step, abs=0.002)
    assert where.published >= where.step.mean


def test_parts_share_questions_but_folds_do_not() -> None:
    folder = shared_data("who_and_when")
    result = CliRunner().invoke(
        build_app(),
        ["eval", "who_and_when", str(folder), "--method", "index_prior", "--repeats", "1", "--json"],
    )
    given = json.loads(result.stdout)
    assert given["n"] == 142
    assert {name: part["n"] for name, part in given["subsets"].items()} == {
        "Algorithm-Generated": 97,
        "Hand-Crafted": 45,
    }
    assert given["setting"] == "cross_validated"


def test_outcomes_match_known_figures_on_tau_bench() -> None:
    data = load_dataset("tau_bench", [shared_data("tau_bench/gpt-4o-airline.dev.json")])
    result = evaluate(data, "last_error")
    assert result.outcome is not None
    assert (result.outcome.n, result.outcome.n_failed) == (128, 78)
    assert result.localization is None
    assert result.as_dict()["step_accuracy"] is None
    assert 0.5 < result.outcome.auroc.mean < 0.75
    assert len({case.run for case in result.cases}) == 128
