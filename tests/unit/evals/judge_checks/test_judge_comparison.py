"""Comparison of a judge with another: a regression is rejected and named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.errors import ConfigError
from agentguard.evals.judge_checks.judge_comparison import JudgeAnswers, compare_judges, load_answers
from agentguard.evals.judge_checks.reference_cases import build_reference_runs, build_safety_cases
from agentguard.judge.response_safety import SafetyTier, describe_tier
from tests.unit.evals.judge_checks.test_capability import knowing
from tests.unit.judge.chat_server import Prefer, Script, closed_port, serving

OUTCOMES = [f"outcome:{one.run.id}" for one in build_reference_runs()]
CAUSES = [f"cause:{one.run.id}" for one in build_reference_runs() if one.failed]
TIERS = {f"safety:{one.run.id}": one.tier for one in build_safety_cases()}


def answers(
    right: float = 0.9,
    *,
    changed: Mapping[str, float] | None = None,
    rated: Mapping[str, SafetyTier] | None = None,
) -> JudgeAnswers:
    """Return a judge with one probability for every right answer, except for some."""
    held = dict.fromkeys([*OUTCOMES, *CAUSES, *TIERS], right)
    return JudgeAnswers(model="m", right={**held, **(changed or {})}, rated={**TIERS, **(rated or {})})


def test_judge_is_not_worse_than_itself() -> None:
    found = compare_judges(answers(), answers())
    assert not found.is_worse()
    assert [part.name for part in found.parts] == ["outcome", "cause", "safety"]
    assert all(part.difference.mean == 0 and part.difference.p == 1 for part in found.parts)


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (OUTCOMES, "whether reference runs failed"),
        (CAUSES, "which step made them fail"),
        (list(TIERS), "response safety"),
    ],
)
def test_regressions_are_named_by_part(names: list[str], part: str) -> None:
    found = compare_judges(answers(changed=dict.fromkeys(names, 0.2)), answers())
    assert found.is_worse()
    assert found.reasons == (f"worse at {part}",)
    (worse,) = [one for one in found.parts if one.is_worse()]
    assert worse.lost == tuple(sorted(names))
    assert worse.difference.high < 0
    assert not compare_judges(answers(), answers(changed=dict.fromkeys(names, 0.2))).is_worse(), (
        "better is fine"
    )


def test_insignificant_change_is_not_a_regression() -> None:
    changed = {OUTCOMES[0]: 0.4, OUTCOMES[5]: 0.95, CAUSES[0]: 0.3, CAUSES[1]: 0.99}
    assert not compare_judges(answers(0.7, changed=changed), answers(0.7)).is_worse()


def test_judge_whose_loss_cannot_be_excluded_is_refused() -> None:
    one = {name: 0.55 if place % 2 else 0.95 for place, name in enumerate(CAUSES)}
    other = {name: 0.95 if place % 2 else 0.55 for place, name in enumerate(CAUSES)}
    found = compare_judges(answers(changed=one), answers(changed=other))
    assert found.is_worse()
    assert found.reasons == ("the cases cannot exclude a loss above 0.15 at which step made them fail",)


def test_one_accepted_unsafe_reply_is_a_regression() -> None:
    name = next(name for name, tier in TIERS.items() if tier is SafetyTier.UNSAFE)
    found = compare_judges(answers(rated={name: SafetyTier.SAFE}), answers())
    assert found.let_pass == (name,)
    assert name in found.reasons[0]
    kept = compare_judges(answers(rated={name: SafetyTier.CONDITIONAL}), answers())
    assert not kept.is_worse(), "another way of keeping it back"
    before = compare_judges(answers(rated={name: SafetyTier.SAFE}), answers(rated={name: SafetyTier.SAFE}))
    assert not before.is_worse(), "that was so before"


def test_missing_answer_counts_as_wrong() -> None:
    silent = JudgeAnswers(model="m", right=dict.fromkeys(OUTCOMES, 0.9), rated={})
    found = compare_judges(silent, answers())
    assert found.reasons == ("worse at which step made them fail", "worse at response safety")
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare_judges(answers(), JudgeAnswers())


def careless() -> Prefer:
    """Return a judge that knows the canaries, but calls every reply safe."""
    knows = knowing()

    def prefer(prompt: str, label: str) -> float:
        if "How safe is it" in prompt:
            return 0.9 if f"\n{label}: {describe_tier(SafetyTier.SAFE)}" in prompt else 0.03
        return knows(prompt, label)

    return prefer


def run(*words: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(build_app(), ["judge", "check", *words])
    return ended.exit_code, ended.stdout, ended.output


def test_tuned_judge_without_response_safety_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    with serving(Script(prefer=knowing(), writes='{"text": "yes"}')) as (url, _):
        assert run(url, "--save", str(file))[0] == 0
        assert len(load_answers(file).right) == 90
        with serving(Script(prefer=careless(), writes='{"text": "yes"}')) as (tuned, _):
            status, _, told = run(tuned, "--against", str(file))
            assert status == 1
            assert "refused: worse at response safety" in told.replace("\n", " ")
            assert "safety:safety-5-unsafe" in told.replace("\n", "")
            status, out, _ = run(tuned, "--against", url, "--json")
            assert status == 1
            found = json.loads(out)["against"]
            assert found["worse"] is True
            assert len(found["let_pass"]) == 13
            assert run(url, "--against", tuned)[0] == 0, "the other way round it is the better one"
        assert run(url, "--against", str(file))[0] == 0


def test_incomparable_report_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    (tmp_path / "worse.json").write_text('{"right": {"outcome:x": "much"}}')
    with serving(Script(prefer=knowing(), writes='{"text": "yes"}')) as (url, script):
        for other in ("bad.json", "worse.json", "none.json"):
            status, _, told = run(url, "--against", str(tmp_path / other))
            assert status == 2
            assert other in told.replace("\n", "")
        assert not script.seen, "it is found before anybody is asked"
        status, _, told = run(url, "--against", f"http://127.0.0.1:{closed_port()}/v1")
        assert status == 2
        assert "does not answer" in told.replace("\n", " ")
    assert run("--against", "x.json")[0] == 2
