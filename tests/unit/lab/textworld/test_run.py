"""Runs in real games: exact snapshots, forks, corrections; injected errors stay hidden from agents."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from agentguard_lab.textworld.error_process import Injection, Rates
from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.outages import Outage, ToolOutage
from agentguard_lab.textworld.run import TextWorldRun
from agentguard_lab.textworld.scenarios import Scenario, build_scenario

from agentguard.errors import ConfigError, MissingExtra

# TextWorld and its dependencies warn at import.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HOUSE: Scenario = build_scenario(0, "easy")
WIPE = Injection(slips=0, name="memory.hallucination/done", turn=6)


@pytest.fixture(scope="module")
def games() -> Iterator[GameLibrary]:
    pytest.importorskip("textworld")
    with GameLibrary() as library:
        yield library


def test_sound_agent_wins_and_records_each_module(games: GameLibrary) -> None:
    run = TextWorldRun(HOUSE, games, seed=1).play()
    assert run.won
    assert run.done
    steps = run.trajectory.steps
    assert [step.index for step in steps] == list(range(len(steps)))
    assert set(steps[0].modules) == {"planning", "action"}
    assert all(set(step.modules) == {"memory", "reflection", "planning", "action"} for step in steps[1:])
    assert all(len(step.observations) == len(step.tool_calls) for step in steps)
    assert "*** The End ***" in steps[-1].observations[-1].content
    with pytest.raises(ConfigError, match="has ended"):
        run.step()


def test_equal_seeds_give_equal_runs_and_others_other_words(games: GameLibrary) -> None:
    one, same, other = (TextWorldRun(HOUSE, games, seed=seed).play() for seed in (1, 1, 2))
    assert one.trajectory == same.trajectory
    assert one.trajectory.steps[1].content != other.trajectory.steps[1].content


def test_runs_of_one_game_can_be_interleaved(games: GameLibrary) -> None:
    alone = [TextWorldRun(HOUSE, games, seed=seed).play().trajectory for seed in (1, 2)]
    runs = [TextWorldRun(HOUSE, games, seed=seed) for seed in (1, 2)]
    while not all(run.done for run in runs):
        for run in runs:
            if not run.done:
                run.step()
    assert [run.trajectory for run in runs] == alone


def test_restored_state_continues_exactly(games: GameLibrary) -> None:
    run = TextWorldRun(HOUSE, games, seed=3)
    for _ in range(4):
        run.step()
    saved = run.snapshot()
    first = run.play().trajectory
    run.restore(saved)
    assert len(run.trajectory.steps) == 4
    assert run.play().trajectory == first
    fork = TextWorldRun(HOUSE, games, seed=3)
    fork.restore(saved)
    assert fork.play().trajectory == first


def lost(games: GameLibrary) -> TextWorldRun:
    """Return a run that fails because the agent believes that it delivered the thing."""
    run = TextWorldRun(HOUSE, games, seed=4, errors=Injection(slips=0, name=WIPE.name, turn=_turn(games)))
    run.agent.care = 0.0
    return run.play()


def _turn(games: GameLibrary) -> int:
    """Return the turn after the one in which the agent took the thing."""
    steps = TextWorldRun(HOUSE, games, seed=4, errors=Injection(slips=0, name=WIPE.name)).play().trajectory
    taken = next(step.index for step in steps.steps if step.tool_calls[0].name == "take")
    return taken + 2


def test_injected_error_fails_the_run_without_a_trace(games: GameLibrary) -> None:
    run = lost(games)
    assert run.ending == "answer"
    assert [one.name for one in run.errors.occurrences] == [WIPE.name]
    text = repr(run.trajectory)
    assert "inject" not in text
    assert "hallucination" not in text


def test_rollback_with_followed_hint_wins(games: GameLibrary) -> None:
    run = lost(games)
    step = run.errors.occurrences[0].turn - 1
    assert run.truncate(step, "Check what you carry before you go on.", acceptance_rate=1.0)
    assert len(run.trajectory.steps) == step
    assert run.play().won


def test_ignored_hint_repeats_the_error(games: GameLibrary) -> None:
    run = lost(games)
    step = run.errors.occurrences[0].turn - 1
    assert not run.truncate(step, "Check what you carry before you go on.", acceptance_rate=0.0)
    assert not run.play().won
    assert len(run.errors.occurrences) == 2


def test_late_rollback_keeps_the_wrong_belief(games: GameLibrary) -> None:
    run = lost(games)
    step = run.errors.occurrences[0].turn
    run.truncate(step)
    assert ("deliver", HOUSE.task.deliveries[0].item) in run.agent.memory.done


def test_hints_are_followed_at_the_given_rate(games: GameLibrary) -> None:
    accepted = 0
    for seed in range(40):
        run = TextWorldRun(HOUSE, games, seed=seed)
        run.step()
        accepted += run.correct("Look again.", acceptance_rate=0.5)
    assert 10 <= accepted <= 30


def test_truncation_without_world_keeps_the_game_state(games: GameLibrary) -> None:
    run = TextWorldRun(HOUSE, games, seed=1)
    for _ in range(5):
        run.step()
    before = run.snapshot().commands
    run.truncate(2, world=False)
    assert run.snapshot().commands == before
    run.truncate(1)
    assert len(run.snapshot().commands) < len(before)


def test_rollback_to_missing_step_is_rejected(games: GameLibrary) -> None:
    run = TextWorldRun(HOUSE, games, seed=1, history=False)
    run.step()
    with pytest.raises(ConfigError, match="no state is kept"):
        run.truncate(0)


def test_turn_limit_ends_the_run(games: GameLibrary) -> None:
    run = TextWorldRun(HOUSE.limit_turns(3), games, seed=1).play()
    assert (run.ending, len(run.trajectory.steps)) == ("turn_limit", 3)


def test_outage_is_visible_in_the_observation(games: GameLibrary) -> None:
    trouble = ToolOutage(outages=(Outage(start=2, length=1, text="Error: no connection to '{tool}'."),))
    run = TextWorldRun(HOUSE, games, seed=1, trouble=trouble).play()
    seen = run.trajectory.steps[1].observations[0]
    assert seen.content.startswith("Error: no connection")
    assert seen.is_error
    assert run.won


def test_truncated_reply_ends_the_run(games: GameLibrary) -> None:
    run = TextWorldRun(HOUSE, games, seed=1, trouble=ToolOutage(cut_at=3)).play()
    assert (run.ending, len(run.trajectory.steps)) == ("cut_off", 3)
    assert run.trajectory.steps[-1].tool_calls == ()


def test_random_errors_are_recorded_for_the_evaluator(games: GameLibrary) -> None:
    errors = Rates(rates={"planning.inefficient_plan": 0.5})
    run = TextWorldRun(HOUSE, games, seed=1, errors=errors).play()
    assert errors.occurrences
    assert all(one.turn <= len(run.trajectory.steps) for one in errors.occurrences)


def test_missing_textworld_error_names_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    with GameLibrary() as library, pytest.raises(MissingExtra, match=r"agentguard\[textworld\]"):
        TextWorldRun(HOUSE, library, seed=1)
