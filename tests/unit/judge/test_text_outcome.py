from __future__ import annotations

import numpy as np

from agentguard.judge.embedded.features.roles import analyze_layout
from agentguard.judge.embedded.text_outcome import count_run_text, fit_text_outcome
from agentguard.trajectory.model import Source, Step, ToolCall, Trajectory


def build_counts(closing: str, *commands: str) -> np.ndarray:
    calls = [
        Step(
            index=index,
            source=Source.AGENT,
            agent="agent",
            tool_calls=(ToolCall(id=str(index), name="bash", arguments={"command": command}),),
        )
        for index, command in enumerate(commands)
    ]
    last = Step(index=len(calls), source=Source.AGENT, agent="agent", content=closing)
    run = Trajectory(id="run", format="test", task="", steps=(*calls, last))
    return count_run_text(analyze_layout(run))


def test_count_run_text_counts_words_and_actions() -> None:
    counts = build_counts("done done", "ls -l", "ls -l")
    closing, actions = np.hsplit(counts, 2)
    assert sorted(closing[closing > 0].tolist()) == [2.0]
    assert sorted(actions[actions > 0].tolist()) == [1.0, 2.0]  # the pair of actions, and the action


def test_count_run_text_separates_commands_of_one_tool() -> None:
    assert not np.array_equal(build_counts("", "git status"), build_counts("", "rm file"))


def test_text_outcome_learns_words_and_actions() -> None:
    rows = [build_counts("all tests pass", f"pytest {n}") for n in range(12)]
    rows += [build_counts("could not fix it", f"pytest {n}") for n in range(12)]
    failed = np.arange(24) >= 12
    model = fit_text_outcome(np.vstack(rows), failed)
    odds = model.predict_log_odds(
        np.vstack([build_counts("all tests pass", "ls"), build_counts("could not do it", "ls")])
    )
    assert odds[0] < 0 < odds[1]


def test_text_outcome_of_a_run_without_text_is_finite() -> None:
    model = fit_text_outcome(np.vstack([build_counts("a b"), build_counts("c d")]), np.array([True, False]))
    assert np.isfinite(model.predict_log_odds(np.zeros((1, build_counts("").shape[1])))).all()
