"""Explanation of a step: the agent's part before the environment's answer to it."""

from __future__ import annotations

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.localize.base import Hypothesis
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory

TASK = "What is the difference in population between the towns of Alder and Birch?"
CODE = "```python\nprint({a} - {b})\n```"


def hypothesis(
    said: str,
    answer: str,
    *,
    step: int,
    repair: str = "exitcode: 0 (execution succeeded)\nCode output: 68750",
) -> Hypothesis:
    """Return the hypothesis for a step of a short run: an analyst's message, and the failure of its code."""
    turns = [
        (Source.AGENT, "Analyst", f"The task: {TASK} Plan: find both populations, then subtract them."),
        (Source.AGENT, "Analyst", said),
        (Source.ENVIRONMENT, "Terminal", answer),
        (Source.AGENT, "Analyst", f"Let me correct that.\n{CODE.format(a=73715, b=4965)}"),
        (Source.ENVIRONMENT, "Terminal", repair),
        (Source.AGENT, "Analyst", "The difference is 68,750, from 73,715 for Alder and 4,965 for Birch."),
    ]
    steps = tuple(
        Step(index=i, source=source, agent=agent, content=text)
        for i, (source, agent, text) in enumerate(turns)
    )
    run = Trajectory(id="towns", format="test", task=TASK, steps=steps)
    given = Guard(options={"given_failed": True}).diagnose(run)
    return next(h for h in given.hypotheses if h.step == step)


def test_invented_values_explain_more_than_the_resulting_error():
    said = f"The census gives 73,715 for Alder and 4,965 for Birch.\n{CODE.format(a='73,715', b='4,965')}"
    found = hypothesis(said, "exitcode: 1 (execution failed)\nCode output: TypeError: bad operand", step=1)
    assert found.codes[0] == "agentrx:invention_of_new_information"
    assert found.module == "memory"
    assert "73,715" in found.evidence[0].quote
    assert any(e.step == 2 for e in found.evidence), "the error is quoted, too"
    assert ".;" not in found.reason


def test_explanation_names_the_detectors_of_its_findings():
    diagnosis = Guard().diagnose(load_trajectory("samples/04-wine-bottle.json"))
    first = diagnosis.hypotheses[0]
    assert first.detectors[:2] == ("tool_error", "exact_loop")
    assert set(first.detectors) <= {finding.detector for finding in diagnosis.findings}


def test_failed_call_of_an_existing_tool_is_not_called_an_action_that_does_not_exist():
    guard = Guard.from_policy(Policy.parse({"detectors": {"tool_error": False}}))
    first = guard.diagnose(load_trajectory("samples/09-watering-can.json")).hypotheses[0]
    assert first.reason == "a call of the step failed"
    assert first.codes[0] == "agent_error:planning.impossible_action"
    assert first.detectors == ()


def test_error_is_the_explanation_of_last_resort():
    said = "I look both up in the table of towns.\n```python\nprint(table['Alder'] - table['Birch'])\n```"
    error = "exitcode: 1 (execution failed)\nCode output: NameError: table"
    found = hypothesis(said, error, step=1, repair=error)
    assert found.module in {"system", "action"}
    assert any(e.step == 2 and "exitcode: 1" in e.quote for e in found.evidence)


def test_repaired_error_is_quoted_without_a_code_and_an_instruction():
    said = "I look both up in the table of towns.\n```python\nprint(table['Alder'] - table['Birch'])\n```"
    found = hypothesis(said, "exitcode: 1 (execution failed)\nCode output: NameError: table", step=1)
    assert (found.codes, found.correction) == ((), "")
    assert found.reason.startswith("a fault that step 3 repaired: ")
    assert any(e.step == 2 and "exitcode: 1" in e.quote for e in found.evidence)


def test_step_without_a_finding_and_a_passage_has_no_code_and_no_instruction():
    said = "I look both up in the table of towns.\n```python\nprint(table['Alder'] - table['Birch'])\n```"
    found = hypothesis(said, "exitcode: 0 (execution succeeded)\nCode output: 68750", step=1)
    assert (found.codes, found.correction, found.evidence) == ((), "", ())
    assert found.reason == "no finding and no quoted passage supports this step"


def test_ranking_without_evidence_is_called_weak_with_the_steps_to_look_at():
    steps = tuple(
        Step(index=i, source=Source.AGENT, agent="Analyst", content=text)
        for i, text in enumerate(("We compare both towns.", "Both towns lie by the sea.", "They are alike."))
    )
    run = Trajectory(id="towns", format="test", task=TASK, steps=steps)
    diagnosis = Guard(options={"given_failed": True}).diagnose(run)
    assert not diagnosis.hypotheses[0].codes
    assert any("weak ranking" in note and "check steps" in note for note in diagnosis.notes)


def test_first_answer_of_a_chat_is_no_invention():
    steps = (
        Step(index=0, source=Source.USER, agent="user", content="How many people live in Alder?"),
        Step(index=1, source=Source.AGENT, agent="assistant", content="The census gives 73,715 for Alder."),
    )
    diagnosis = Guard(options={"given_failed": True}).diagnose(
        Trajectory(id="chat", format="test", task=steps[0].content, steps=steps)
    )
    (answer,) = [one for one in diagnosis.hypotheses if one.step == 1]
    assert "agentrx:invention_of_new_information" not in answer.codes


def test_calculated_number_and_number_of_a_later_result_part_are_not_unsourced():
    steps = (
        Step(index=0, source=Source.AGENT, agent="a", content="I look up the height and the weight.",
             tool_calls=(ToolCall(id="1", name="get_row", arguments={}),),
             observations=(Observation(content="x" * 5_000 + " weight 1,460", call_id="1"),)),
        Step(index=1, source=Source.AGENT, agent="a",
             content="The weight is 1460.\nTwice that = 2920."),
    )  # fmt: skip
    run = Trajectory(id="bmi", format="test", task="What is the ratio?", steps=steps)
    given = Guard(options={"given_failed": True}).diagnose(run)
    assert next(h for h in given.hypotheses if h.step == 1).codes == ()
