"""Generated games: equal seeds give equal games, and the agent knows the task."""

from __future__ import annotations

import pytest
from agentguard_lab.textworld.games import Cooking, House
from agentguard_lab.textworld.observation_parser import CONTAINERS
from agentguard_lab.textworld.scenarios import Difficulty, build_scenario
from agentguard_lab.textworld.vocabulary import DOORS, KEYS, ROOMS, THINGS

SEEDS = range(30)
LEVELS = tuple(Difficulty)


def test_equal_seeds_give_equal_games_and_others_do_not() -> None:
    assert build_scenario(3, "hard") == build_scenario(3, Difficulty.HARD)
    assert len({build_scenario(seed, "easy").id for seed in SEEDS}) == len(SEEDS)
    assert len({repr(build_scenario(seed, "medium").game) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("level", LEVELS)
def test_both_kinds_of_games_occur(level: Difficulty) -> None:
    assert {type(build_scenario(seed, level).game) for seed in SEEDS} == {Cooking, House}


@pytest.mark.parametrize("level", LEVELS)
def test_text_names_each_goal_rule_and_limit(level: Difficulty) -> None:
    for seed in SEEDS:
        made = build_scenario(seed, level)
        for goal in made.task.deliveries:
            assert f"the {goal.item} on the {goal.holder} in the {goal.room}" in made.text
        for rule in made.task.close_after:
            assert rule in made.text
        assert str(made.max_turns) in made.text.rsplit("\n", 1)[1]


@pytest.mark.parametrize("level", LEVELS)
def test_things_are_unique_in_a_house_and_goals_are_reachable(level: Difficulty) -> None:
    for game in (made.game for made in (build_scenario(seed, level) for seed in SEEDS)):
        if not isinstance(game, House):
            continue
        entries = [entry.strip().split(" @ ") for entry in game.things.split(";")]
        names = [what.split(" ", 1)[1] for what, _ in entries]
        assert len(set(names)) == len(names)
        places = {*names, *(room for room in ROOMS), "inventory"}
        assert all(parent in places for _, parent in entries)
        for fact in game.win.split(";"):
            _, *words = fact.split()
            assert all(word.replace("_", " ") in names for word in words)


def test_larger_difficulties_are_larger() -> None:
    limits = [sum(build_scenario(seed, level).max_turns for seed in SEEDS) for level in LEVELS]
    assert limits == sorted(limits)
    assert limits[0] * 2 < limits[2]


def test_other_limit_changes_only_the_last_line() -> None:
    made = build_scenario(5, "medium")
    other = made.limit_turns(9)
    assert other.max_turns == 9
    assert "9" in other.text.rsplit("\n", 1)[1]
    assert other.text.rsplit("\n", 1)[0] == made.text.rsplit("\n", 1)[0]
    assert (other.id, other.game, other.task) == (made.id, made.game, made.task)


def test_names_are_distinguishable() -> None:
    furniture = [name for supporters, _ in ROOMS.values() for name in supporters]
    containers = [name for _, inside in ROOMS.values() for name in inside]
    names = [*furniture, *containers, *THINGS, *KEYS, *DOORS, *ROOMS]
    assert len(set(names)) == len(names)
    assert set(containers) <= set(CONTAINERS)
    for name in names:
        assert not set(name.split()) & {"north", "south", "east", "west", "open", "closed", "locked", "and"}
