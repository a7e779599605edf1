"""Each method asks its paper's questions on its paper's part of the run, and ranks the answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentguard.detect.base import Finding
from agentguard.judge.base import Question
from agentguard.localize.base import Diagnosis, get_localizer_registry
from agentguard.localize.llm.step_search import compute_first_yes_probabilities
from agentguard.trajectory.model import ToolSpec, Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.judges import Said, TableJudge
from tests.unit.localize.runs import chat, steered


def finding(step: int, *, probability: float = 0.6, code: str = "mast:step_repetition") -> Finding:
    return Finding(
        detector="loop",
        step=step,
        codes=(code,),
        probability=probability,
        message="The same was done again.",
        correction="Do something else.",
    )


def ask(name: str, judge: TableJudge, run: Trajectory, *findings: Finding, failed: bool = True) -> Diagnosis:
    return get_localizer_registry().get(name)(judge=judge, given_failed=failed).locate(run, findings)


def top(diagnosis: Diagnosis) -> int:
    return diagnosis.hypotheses[0].step


def texts(judge: TableJudge) -> list[str]:
    return [question.id for _, question in judge.asked]


def test_all_at_once_asks_one_question_over_all_steps() -> None:
    judge = TableJudge(lambda run, question: "3")
    told = ask("all_at_once", judge, steered())
    assert top(told) == 3
    assert told.hypotheses[0].agent == "Browser"
    assert [question.options for _, question in judge.asked] == [("0", "1", "2", "3", "4", "5")]
    assert told.usage["calls"] == 1
    assert told.usage["prompt_tokens"] == 100
    assert told.usage["cached_tokens"] == 80


def test_step_by_step_shows_the_prefix_and_stops_at_the_first_yes() -> None:
    judge = TableJudge(lambda run, question: "yes" if question.id == "mistake_2" else "no")
    told = ask("step_by_step", judge, steered())
    assert top(told) == 2
    assert [len(run.steps) for run, _ in judge.asked] == [1, 2, 3]
    assert sum(one.probability for one in told.hypotheses) == pytest.approx(1)


def test_step_by_step_without_a_yes_still_ranks() -> None:
    said = {f"mistake_{i}": {"yes": 0.1, "no": 0.9} for i in range(6)} | {
        "mistake_4": {"yes": 0.4, "no": 0.6}
    }
    told = ask("step_by_step", TableJudge(lambda run, question: said[question.id]), steered())
    assert top(told) == 4


@pytest.mark.parametrize("said", [{}, {0: 0.0, 1: 0.0}, {0: 1.0}, {0: 0.2, 1: 0.7, 2: 0.1}])
def test_step_by_step_gives_a_distribution(said: dict[int, float]) -> None:
    found = compute_first_yes_probabilities(said)
    assert set(found) == set(said)
    assert not said or sum(found.values()) == pytest.approx(1)


def test_binary_search_halves_the_shown_range() -> None:
    def says(run: Trajectory, question: Question) -> Said:
        middle = (len(run.steps) + 1) // 2
        return "first" if any(step.index == 3 for step in run.steps[:middle]) else "second"

    judge = TableJudge(says)
    told = ask("binary_search", judge, steered())
    assert top(told) == 3
    assert [[step.index for step in run.steps] for run, _ in judge.asked] == [
        [0, 1, 2, 3, 4, 5],
        [3, 4, 5],
        [3, 4],
    ]
    assert told.usage["calls"] == 3
    assert sum(one.probability for one in told.hypotheses) == pytest.approx(1)


def test_structured_asks_about_turns_with_the_log_beside_the_run() -> None:
    judge = TableJudge(lambda run, question: "steps 1 to 2")
    told = ask("structured", judge, steered(), finding(3))
    assert [one.step for one in told.hypotheses[:2]] == [1, 2]
    ((_, question),) = judge.asked
    assert question.options == ("steps 1 to 2", "step 3", "step 4", "step 5")
    assert question.context[0] == "turn 1, steps 1 to 2, Orchestrator: steers"
    assert "The same was done again." in question.context[1]


def test_constraints_show_findings_and_name_them_at_their_step() -> None:
    judge = TableJudge(lambda run, question: "3")
    told = ask("constraints", judge, chat(), finding(3), finding(1, probability=0.3))
    assert told.hypotheses[0].codes == ("mast:step_repetition",)
    assert told.hypotheses[0].correction == "Do something else."
    ((_, question),) = judge.asked
    assert [line.split(":")[0] for line in question.context] == ["step 1, loop", "step 3, loop"]
    assert question.options == ("0", "1", "3")  # the shell is not an agent


def test_two_stage_asks_modules_then_codes_then_the_critical_step() -> None:
    def says(run: Trajectory, question: Question) -> Said:
        kind, _, step = question.id.partition("_")
        if kind == "part":
            return {"1": "memory", "3": "action"}.get(step, "none")
        if kind == "code":
            return question.options[0]
        return "3"

    judge = TableJudge(says)
    told = ask("two_stage", judge, chat())
    assert texts(judge) == ["part_0", "part_1", "part_3", "code_1", "code_3", "critical_error"]
    assert judge.asked[0][1].options == ("none", "planning", "action")  # there is no earlier step to remember
    assert judge.asked[1][1].options == ("none", "memory", "reflection", "planning", "action")
    critical = judge.asked[-1][1]
    assert critical.options == ("1", "3")
    assert [line.split(",")[0] for line in critical.context] == ["step 1: memory", "step 3: action"]
    first = told.hypotheses[0]
    assert (first.step, first.module) == (3, "action")
    assert first.codes[0].startswith("agent_error:action.")
    assert first.correction


def test_two_stage_takes_system_errors_from_rules() -> None:
    judge = TableJudge(
        lambda run, question: "none" if question.id.startswith("part") else question.options[0]
    )
    failed = finding(1, probability=0.8, code="agent_error:system.tool_execution_error")
    told = ask("two_stage", judge, chat(), failed)
    assert (top(told), told.hypotheses[0].module) == (1, "system")


def test_failed_question_makes_the_run_undecided() -> None:
    for name in ("step_by_step", "binary_search", "all_at_once", "structured", "constraints", "two_stage"):
        told = ask(name, TableJudge(lambda run, question: None), steered())
        assert told.verdict is Verdict.UNDECIDED
        assert told.failures[0].error == "busy: later"
        assert not told.hypotheses


@pytest.mark.parametrize(
    ("yes", "verdict"), [(0.9, Verdict.FAILED), (0.55, Verdict.UNDECIDED), (0.1, Verdict.NO_FAILURE_FOUND)]
)
def test_verdict_is_that_of_the_judge(yes: float, verdict: Verdict) -> None:
    def says(run: Trajectory, question: Question) -> Said:
        return {"yes": yes, "no": 1 - yes} if question.id == "run_failed" else "1"

    told = ask("all_at_once", TableJudge(says), chat(), failed=False)
    assert told.verdict is verdict
    assert told.probability == pytest.approx(yes)
    assert bool(told.hypotheses) is (verdict is not Verdict.NO_FAILURE_FOUND)


def test_certain_rule_is_never_overridden_by_the_judge() -> None:
    def says(run: Trajectory, question: Question) -> Said:
        return "no" if question.id == "run_failed" else "1"

    told = ask("all_at_once", TableJudge(says), chat(), finding(1, probability=0.95), failed=False)
    assert told.verdict is Verdict.UNDECIDED
    assert "loop is certain of one at step 1" in told.notes[0]


def test_judge_can_be_asked_in_both_orders() -> None:
    judge = TableJudge(lambda run, question: question.options[0])  # type: ignore[union-attr]
    told = (
        get_localizer_registry()
        .get("all_at_once")(judge=judge, swap=True, given_failed=True)
        .locate(chat(), ())
    )
    asked = [getattr(question, "options", ()) for _, question in judge.asked]
    assert sorted(asked) == [("0", "1", "2", "3"), ("3", "2", "1", "0")]
    assert {one.step for one in told.hypotheses[:2]} == {0, 3}


def test_constraints_are_shown_with_the_agents_instructions() -> None:
    schema = {"type": "object", "properties": {"seat": {"type": "integer"}}, "required": ["seat"]}
    tools = (ToolSpec(name="book", description="Books a seat.", parameters=schema), ToolSpec(name="look"))
    run = replace(steered(), tools=tools, system_prompts={"": "Never book twice.", "Browser": "x" * 9_000})
    judge = TableJudge(lambda run, question: "3")
    ask("constraints", judge, run, finding(3))
    ((_, asked),) = judge.asked
    assert asked.context[0] == "policy of all agents: Never book twice."
    assert len(asked.context[1]) == 2_000, "a long prompt does not crowd out the rest"
    assert asked.context[2] == "tool book: Books a seat. Arguments: seat (required): integer."
    assert asked.context[3].startswith("tool look:")
    assert asked.context[-1].startswith("step 3, loop: ")
    plain = TableJudge(lambda run, question: "3")
    ask("constraints", plain, run)
    assert plain.asked[0][1].context == (), "where nothing is violated the run is shown alone"
