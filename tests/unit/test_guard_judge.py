"""A policy that names a judge: a real HTTP endpoint, the default localizer, and an unavailable judge."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.config.policy import Policy
from agentguard.detect.detection import detect
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.judge.response_safety import SafetyTier, describe_tier
from agentguard.schemata.distillation.distiller import EmbeddedDistiller, FailureLocation
from agentguard.schemata.model import ErrorSchema, SchemaOrigin
from agentguard.schemata.persistence import open_schema_store
from agentguard.store import Store
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict
from tests.unit.cli.test_cmd_judge import chat as recorded
from tests.unit.judge.chat_server import LONG_S, Script, closed_port, serving
from tests.unit.localize.runs import chat


def preferring(*options: str, sure: float = 0.9) -> Script:
    """Return a server whose model prefers the given options at any position."""

    def prefer(prompt: str, label: str) -> float:
        shown = dict(line.split(": ", 1) for line in prompt.split("\n") if line[1:3] == ": ")
        return sure if shown.get(label) in options else 0.01

    return Script(prefer=prefer)


Make = Callable[[Policy], Guard]


@pytest.fixture
def made() -> Iterator[Make]:
    """Create guards that are closed at the end of the test."""
    with ExitStack() as held:
        yield lambda policy: held.enter_context(Guard.from_policy(policy))


def policy(url: str, **more: object) -> Policy:
    return Policy.parse({"judge": {"base_url": url, "deadline_s": 60}, "detector_deadline_s": 60, **more})


def test_fused_is_the_default_with_a_configured_judge(made: Make) -> None:
    with serving(preferring("yes", "step 3")) as (url, script):
        guard = made(policy(url))
        told = guard.diagnose(chat())
        assert (told.method, guard.localizer.name) == ("fused", "fused")
        assert not told.failures
        assert told.usage["calls"] == 4, "two questions in both orders: the swap is the default"
        assert all("tools" not in body for body in script.seen), "a judge is offered none"
    assert made(Policy()).localizer.name == "embedded"
    named = policy(url, localizer={"name": "embedded"})
    assert made(named).localizer.name == "embedded", "who names a localizer gets it"


def test_policy_keeps_the_default_localizer_in_json() -> None:
    given = policy("http://127.0.0.1:1/v1")
    assert Policy.model_validate_json(given.model_dump_json()).resolve_localizer().name == "fused"


def test_localizer_uses_its_own_judge_or_that_of_the_policy(made: Make) -> None:
    with serving(preferring("yes", "3")) as (url, script):
        told = made(policy(url, localizer={"name": "all_at_once"})).diagnose(chat())
        assert told.verdict is Verdict.FAILED
        assert told.hypotheses[0].step == 3
        seen = len(script.seen)
        own = {"name": "all_at_once", "base_url": f"http://127.0.0.1:{closed_port()}/v1"}
        assert made(policy(url, localizer=own)).diagnose(chat()).failures
        assert len(script.seen) == seen


def test_disabled_swap_asks_each_question_once(made: Make) -> None:
    with serving(preferring("yes", "step 3")) as (url, script):
        given = Policy.parse({"judge": {"base_url": url, "swap": False}})
        assert made(given).diagnose(chat()).usage["calls"] == 2
        assert len(script.seen) == 2


@pytest.mark.parametrize("fault", ["closed", "hang", "500", "html"])
def test_unavailable_judge_keeps_the_embedded_verdict_within_the_deadline(fault: str, made: Make) -> None:
    alone = Guard().diagnose(chat())
    with serving(Script(always=None if fault == "closed" else fault)) as (url, script):
        address = f"http://127.0.0.1:{closed_port()}/v1" if fault == "closed" else url
        guard = made(
            Policy.parse({"judge": {"base_url": address, "deadline_s": 1.0}, "detector_deadline_s": 60})
        )
        began = time.monotonic()
        told = guard.diagnose(chat())
        seconds = time.monotonic() - began
    assert seconds < LONG_S / 2, "the server that hangs would take LONG_S"
    assert fault != "hang" or len(script.seen) <= 1, "one deadline of a second holds for all questions"
    assert (told.verdict, told.probability) == (alone.verdict, alone.probability)
    assert [one.step for one in told.hypotheses] == [one.step for one in alone.hypotheses]
    assert "the judge did not answer" in told.notes[-1]
    assert told.failures


def test_step_of_a_running_agent_does_not_wait_for_the_judge(made: Make) -> None:
    with serving(preferring("yes")) as (url, script):
        guard = made(policy(url, recover={"on_fail": ["rollback"]}))
        rules = guard.components.session_config
        assert rules is not None
        assert rules.localizer is not None
        assert rules.localizer.name == "embedded"
        assert rules.localizer.locate(chat(), ()).hypotheses
        assert not script.seen


def test_safety_of_a_policy_asks_both_judges(made: Make) -> None:
    unsafe = describe_tier(SafetyTier.UNSAFE)
    with serving(preferring(unsafe)) as (one, first), serving(preferring(unsafe)) as (other, second):
        given = {"base_url": one, "second": {"base_url": other}}
        guard = made(Policy.parse({"judge": given, "safety": {}}))
        with guard.run("How do I get in?") as run:
            while not run.done:
                run.tools(run.model(lambda messages: "Pick the lock so."))
        assert "rated as unsafe" in (run.session.stop_reason or "")
        assert (len(first.seen), len(second.seen)) == (2, 2)
        assert "| Pick the lock so." in first.prompts()[0]


def test_disagreeing_judges_of_a_policy_block_nothing(made: Make) -> None:
    unsafe, safe = describe_tier(SafetyTier.UNSAFE), describe_tier(SafetyTier.SAFE)
    with serving(preferring(unsafe)) as (one, _), serving(preferring(safe)) as (other, _):
        given = {"base_url": one, "second": {"base_url": other}}
        guard = made(Policy.parse({"judge": given, "safety": {}}))
        with guard.run("How do I get in?") as run:
            while not run.done:
                run.tools(run.model(lambda messages: "Pick the lock so."))
    assert run.session.stop_reason is None
    assert run.answer == "Pick the lock so.", "a condition was told, once"
    assert [one.plan.strategy for one in run.recoveries] == ["hint"]


def test_policy_sets_thresholds_actions_and_escalations(made: Make) -> None:
    held = {describe_tier(SafetyTier.SAFE): 0.7, describe_tier(SafetyTier.UNSAFE): 0.25}

    def prefer(prompt: str, label: str) -> float:
        shown = dict(line.split(": ", 1) for line in prompt.split("\n") if line[1:3] == ": ")
        return held.get(shown.get(label, ""), 0.02)

    tiers = {"unsafe": {"threshold": 0.2, "action": "condition"}, "on_condition": ["stop"]}
    with serving(Script(prefer=prefer)) as (url, _):
        rules = {"focused_attention": {"action": "condition"}, **tiers}
        guard = made(policy(url, safety=rules))
        with guard.run("How do I get in?") as run:
            while not run.done:
                run.tools(run.model(lambda messages: "Pick the lock so."))
    assert run.session.stop_reason is not None


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ({"safety": {}}, "safety needs a judge"),
        ({"judge": {"base_url": "http://h/v1", "deadline_s": 0}}, "judge.deadline_s"),
        ({"judge": {"base_url": "http://h/v1", "kind": "oracle"}}, "judge.kind"),
        ({"judge": {"model": "m"}}, "judge: .*base_url"),
        ({"judge": {"base_url": "http://h/v1", "temperature": 1}}, "judge.temperature"),
    ],
)
def test_invalid_section_is_rejected_by_name(section: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Policy.parse(section)


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ({"unsafe": {"threshold": 0}}, "safety.unsafe.threshold"),
        ({"unsafe": {"action": "delete"}}, "safety.unsafe.action"),
        ({"unknown": "retry"}, "safety.unknown"),
        ({"safe": {"action": "block"}}, "safety.safe"),
    ],
)
def test_safety_thresholds_and_actions_are_validated(section: object, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        policy("http://127.0.0.1:1/v1", safety=section)


def test_one_judge_with_effectful_actions_is_rejected_with_remedy() -> None:
    with pytest.raises(ConfigError, match="two judges that agree"):
        Guard.from_policy(policy("http://127.0.0.1:1/v1", safety={}))
    assert Guard.from_policy(policy("http://127.0.0.1:1/v1", safety={"alone": True})).components.safety


def test_missing_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"judge": {"base_url": "http://127.0.0.1:1/v1", "api_key_env": "NO_SUCH_KEY"}}
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        Guard.from_policy(Policy.parse(given))


def test_diagnose_accepts_a_judge(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(recorded(1)))
    with serving(preferring("yes", "step 1")) as (url, script):
        ended = CliRunner().invoke(
            build_app(),
            ["diagnose", str(tmp_path / "run.json"), "--judge", url, "--judge-model", "judge", "--json"],
        )
        assert ended.exit_code == 0, ended.output
        assert script.seen
    told = json.loads(ended.stdout)
    assert told["method"] == "fused"
    assert told["usage"]["calls"] == 4
    alone = CliRunner().invoke(build_app(), ["diagnose", str(tmp_path / "run.json"), "--judge-model", "m"])
    assert alone.exit_code == 2
    assert "--judge" in alone.output


def test_parallel_diagnosis_gives_the_same_answers_in_the_same_order(tmp_path: Path) -> None:
    for number in range(6):
        document = {**recorded(number % 2), "id": f"run-{number}"}
        (tmp_path / f"{number}.json").write_text(json.dumps(document))

    def diagnose(jobs: int) -> list[tuple[object, ...]]:
        with serving(preferring("yes", "step 1")) as (url, _):
            command = ["diagnose", str(tmp_path), "--judge", url, "--json", "--jobs", str(jobs)]
            ended = CliRunner().invoke(build_app(), command)
        assert ended.exit_code == 0, ended.output
        rows = [json.loads(line) for line in ended.stdout.splitlines()]
        return [(r["trajectory_id"], r["verdict"], r["probability"], r["hypotheses"]) for r in rows]

    alone = diagnose(1)
    assert len(alone) == 6
    assert diagnose(4) == alone


def test_price_of_the_judges_model_gives_the_cost_of_a_diagnosis(made: Make, tmp_path: Path) -> None:
    prices = {"judge": {"input": 2.0, "cached_input": 1.0, "output": 4.0}}
    with serving(preferring("yes", "step 3")) as (url, _):
        usage = made(policy(url, prices=prices)).diagnose(chat()).usage
        unpriced = made(policy(url, prices={"other": prices["judge"]})).diagnose(chat()).usage
        (tmp_path / "p.yaml").write_text(json.dumps({"judge": {"base_url": url}, "prices": prices}))
        (tmp_path / "run.json").write_text(json.dumps(recorded(1)))
        words = ["diagnose", str(tmp_path / "run.json"), "--policy", str(tmp_path / "p.yaml")]
        shown = CliRunner().invoke(build_app(), words).output
    new = usage["prompt_tokens"] - usage["cached_tokens"]
    dollars = (2.0 * new + usage["cached_tokens"] + 4.0 * usage["completion_tokens"]) / 1e6
    assert usage["cost_usd"] == pytest.approx(dollars)
    assert dollars > 0
    assert "cost_usd" not in unpriced
    assert re.search(r"from the cache, [\d,]+ tokens, \$0\.00", shown), shown


def test_judge_option_of_the_command_line_reaches_the_request(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(recorded(1)))
    with serving(preferring("yes", "step 1")) as (url, script):
        options = ["--judge-option", 'chat_template_kwargs={"effort": "low"}', "--judge-option", "swap=false"]
        command = ["diagnose", str(tmp_path / "run.json"), "--judge", url, "--json", *options]
        assert CliRunner().invoke(build_app(), command).exit_code == 0
    assert script.seen[0]["chat_template_kwargs"] == {"effort": "low"}
    wrong = CliRunner().invoke(build_app(), [*command, "--judge-option", "reasoning_tokens=-1"])
    assert isinstance(wrong.exception, ConfigError) or "reasoning_tokens" in wrong.output


def matching_schema(run: Trajectory, correction: str) -> ErrorSchema:
    """Return an active schema that is distilled from a step of the run, with a correction."""
    fault = FailureLocation(step=1, origin=SchemaOrigin.RECOVERED)
    schema = EmbeddedDistiller().distill_step(run, detect(run).findings, fault)
    assert schema is not None
    return replace(schema, correction=correction, confirmed=2)


@pytest.mark.parametrize("place", ["file", "store", "default"])
def test_policy_line_shows_judge_and_report_the_matching_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    run, correction = chat(), "Read the answer before you repeat the call."
    path = tmp_path / ("s.jsonl" if place == "file" else "s.db")
    with open_schema_store(path) as held:
        held.upsert([matching_schema(run, correction)])
    if place == "default":
        monkeypatch.setenv("AGENTGUARD_STORE", str(path))
    with serving(preferring("yes", "step 3")) as (url, script), ExitStack() as opened:
        store = {"store": opened.enter_context(Store.open(path))} if place == "store" else {}
        settings = policy(url, **({"schemata": str(path)} if place == "file" else {}))
        guard = opened.enter_context(Guard.from_policy(settings, **store))
        diagnosis = guard.diagnose(run)
        plain = opened.enter_context(Guard.from_policy(policy(url, schemata=False))).diagnose(run)
    assert sum(f"What corrects it: {correction}" in prompt for prompt in script.prompts()) == 4
    assert len(script.prompts()) == 8
    (cited,) = [one for one in diagnosis.hypotheses if one.schemata]
    assert cited.step == 1
    assert "it looks like an earlier failure" in cited.reason
    assert diagnosis.judge != plain.judge, "the schemata shown are part of the judge's version"
    assert [one.step for one in diagnosis.hypotheses] == [one.step for one in plain.hypotheses]


def test_store_option_is_the_store_of_the_schemata(tmp_path: Path) -> None:
    run, path = chat(), tmp_path / "runs.db"
    with Store.open(path) as store:
        store.write_run(run)
    with open_schema_store(path) as held:
        held.upsert([matching_schema(run, "Read first.")])
    with serving(preferring("yes", "step 3")) as (url, script):
        (tmp_path / "p.yaml").write_text(f"judge: {{base_url: {url}, deadline_s: 60}}\n")
        words = ["runs", "diagnose", "--store", str(path), "--policy", str(tmp_path / "p.yaml")]
        result = CliRunner().invoke(build_app(), words)
    assert result.exit_code == 0, result.output
    assert any("What corrects it: Read first." in prompt for prompt in script.prompts())


@pytest.mark.parametrize(
    ("fault", "kind", "remedy"),
    [
        ("401", "refused: the endpoint answered 401", "api_key_env"),
        ("429", "busy: the endpoint answered 429", "lower max_concurrent"),
        ("html", "malformed: the endpoint's answer cannot be read", "ends with /v1"),
        ("not-chat", "malformed: the endpoint's answer is not a chat completion", "ends with /v1"),
    ],
)
def test_failure_of_the_judge_names_endpoint_cause_and_remedy(
    made: Make, fault: str, kind: str, remedy: str
) -> None:
    with serving(Script(always=fault)) as (url, _):
        secret = url.replace("//", "//user:pass@")
        (failure,) = made(policy(secret)).diagnose(chat()).failures
    assert failure.error.startswith(f"{kind} ({url}); ")
    assert remedy in failure.error


def test_failure_without_probabilities_or_server_names_the_remedy(made: Make) -> None:
    with serving(Script(logprobs=False)) as (url, _):
        (failure,) = made(policy(url)).diagnose(chat()).failures
        (unknown,) = made(policy(url, judge={"base_url": url, "model": "gpt-x"})).diagnose(chat()).failures
    assert failure.error.startswith(
        f"no_probabilities: the endpoint gives no log probabilities of the labels ({url}); "
    )
    assert unknown.error.startswith(
        f"no_model: the endpoint answered 404 for the model 'gpt-x' ({url}); name a model of the list"
    )
    address = f"http://127.0.0.1:{closed_port()}/v1"
    (stopped,) = made(policy(address)).diagnose(chat()).failures
    assert stopped.error.startswith("unreachable: ")
    assert f"({address}); start the server (agentguard judge serve)" in stopped.error
