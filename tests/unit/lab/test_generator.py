"""Online injection: the same seed makes the same runs, each failure has one cause, and no run reveals it."""

from __future__ import annotations

import pytest
from agentguard_lab.textworld.default_rates import AGENT_ERRORS
from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.run_generator import GenerationPlan, RunGenerator, generate
from agentguard_lab.textworld.scenarios import build_scenario
from agentguard_lab.textworld.twin_run import TwinRun

from agentguard.errors import ConfigError
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import Record
from agentguard.trajectory.safe_json import dumps


def test_each_code_of_the_taxonomy_has_a_weight() -> None:
    codes = {code.id for code in TaxonomyCatalog.load().get_taxonomy("agent_error").codes}
    assert set(AGENT_ERRORS) == codes
    assert all(weight > 0 for weight in AGENT_ERRORS.values())


@pytest.mark.parametrize(
    ("options", "part"),
    [({"failed": -1, "passed": 0}, "negative"), ({"failed": 1, "passed": 1, "difficulty": "mad"}, "mad")],
)
def test_impossible_request_is_rejected_at_once(options: dict, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        generate(seed=1, **options)


def lines(records: list[Record]) -> bytes:
    return b"".join(dumps(event) for record in records for event in build_events(record))


@pytest.fixture(scope="module")
def made() -> list[Record]:
    pytest.importorskip("textworld")
    return list(generate(failed=8, passed=4, seed=5, difficulty="easy"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestGenerated:
    """Runs of real games."""

    def test_requested_numbers_are_made_in_mixed_order(self, made: list[Record]) -> None:
        failed = [record.annotation.failed for record in made]
        assert (failed.count(True), failed.count(False)) == (8, 4)
        assert failed != sorted(failed)
        assert len({record.trajectory.id for record in made}) == len(made)

    def test_same_seed_makes_the_same_bytes(self, made: list[Record]) -> None:
        counts: list[int] = []
        again = list(generate(failed=8, passed=4, seed=5, difficulty="easy", progress=counts.append))
        assert lines(again) == lines(made)
        assert counts == list(range(1, 13))

    def test_each_failure_has_one_cause_at_a_step_of_the_run(self, made: list[Record]) -> None:
        for record in made:
            cause, told = record.annotation.root_cause, record.annotation.extra
            if not record.annotation.failed:
                assert cause is None
                continue
            assert cause is not None
            assert cause.step is not None
            assert told["origin"] == "injected"
            assert cause.codes == (f"agent_error:{told['injected']['code']}",)
            assert cause.module == told["injected"]["code"].partition(".")[0]
            assert cause.agent == record.trajectory.steps[cause.step].agent
            assert told["injected"]["ending"] != "won"

    def test_runs_of_one_game_are_one_group(self, made: list[Record]) -> None:
        for record in made:
            assert record.annotation.group == record.annotation.extra["game"]
        tasks = {record.annotation.group: record.trajectory.task.rsplit("\n", 1)[0] for record in made}
        assert all(tasks[r.annotation.group] == r.trajectory.task.rsplit("\n", 1)[0] for r in made)

    def test_run_excludes_its_label(self, made: list[Record]) -> None:
        for record in made:
            text = lines([Record(trajectory=record.trajectory)]).decode()
            assert "inject" not in text
            for code in AGENT_ERRORS:
                assert code not in text

    def test_failed_run_shares_its_prefix_with_passed_twin(self) -> None:
        with GameLibrary() as library:
            attempt = TwinRun(build_scenario(0, "easy"), library, 3)
            assert attempt.twin.won
            twin = attempt.twin.trajectory.steps
            for code in ("memory.hallucination", "planning.inefficient_plan", "system.tool_execution_error"):
                for struck in attempt.generate_injected_runs(code, tries=2):
                    steps = struck.run.trajectory.steps
                    assert steps[: struck.step] == twin[: struck.step]
                    assert steps[struck.step] != twin[struck.step]

    def test_natural_failures_are_stored_separately(self) -> None:
        apart: list[Record] = []
        plan = GenerationPlan(failed=0, passed=3, seed=1, difficulty="easy")
        generator = RunGenerator(plan, apart=apart.append)
        assert all(record.annotation.failed is False for record in generator.records())
        assert len(apart) == sum(n for (_, won), n in generator.natural.items() if not won)
