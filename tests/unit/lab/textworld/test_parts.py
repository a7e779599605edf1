"""The parts of the sample agent that need no game."""

from __future__ import annotations

import pytest
from agentguard_lab.textworld import tools
from agentguard_lab.textworld.belief_state import Memory
from agentguard_lab.textworld.environment import clean_feedback
from agentguard_lab.textworld.observation_parser import parse_observation, parse_recipe, split_names
from agentguard_lab.textworld.planner import Deliver, GoalPlanner, Intent, Task

HALL = (
    "-= Hall =-\nYou are in a hall.\n\nYou see a closed cabinet. "
    "On the table you see a red lamp and some salt."
    "\n\nThere is a closed oak door leading north. "
    "There is an exit to the east. Don't worry, it is unblocked."
)


def test_room_is_parsed_with_its_exits_and_things() -> None:
    observation = parse_observation(HALL)
    assert observation.room == "hall"
    assert observation.exits == {"north": ("oak door", "closed"), "east": (None, "open")}
    assert observation.things == {"red lamp": "table", "salt": "table"}
    assert observation.containers == ("cabinet",)


def test_articles_and_state_words_are_removed_from_names() -> None:
    assert split_names("a raw yellow potato, some salt and a knife") == ("yellow potato", "salt", "knife")


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("You take the lamp from the table.", False),
        ("You can't see any such thing.", True),
        ("The cabinet is closed.", True),
        ("You open the fridge, revealing a lettuce and a carrot.", False),
    ],
)
def test_refusals_are_distinguished_from_successes(text: str, refused: bool) -> None:
    assert parse_observation(text).refused is refused


def test_recipe_is_parsed_in_order() -> None:
    page = (
        "Ingredients:\nred apple\nlettuce\n\nDirections:\nchop the red apple\nfry the lettuce\nprepare meal"
    )
    assert parse_recipe(page) == (("red apple", "lettuce"), (("chop", "red apple"), ("fry", "lettuce")))


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("go", '{"direction": "north"}', "go north"),
        ("take", '{"object": "lamp"}', "take lamp"),
        ("take", '{"object": "lamp", "from": "table"}', "take lamp from table"),
        ("unlock", '{"object": "door", "key": "brass key"}', "unlock door with brass key"),
    ],
)
def test_valid_calls_become_game_commands(name: str, raw: str, expected: str) -> None:
    assert tools.translate_call(tools.HOUSE, name, raw) == (expected, "")


@pytest.mark.parametrize(
    ("name", "raw", "part"),
    [
        ("cook", "{}", "unknown tool 'cook'"),
        ("go", "{'direction': 'north'}", "not valid JSON"),
        ("go", '{"direction": "up"}', "'up' is not one of"),
        ("go", "{}", "'direction' is a required property"),
        ("look", '{"where": "here"}', "unexpected property 'where'"),
        ("open", '{"object": 3}', "'object' must be a string"),
        ("open", "[]", "expected an object"),
    ],
)
def test_invalid_calls_are_answered_with_an_error(name: str, raw: str, part: str) -> None:
    command, error = tools.translate_call(tools.HOUSE, name, raw)
    assert command is None
    assert part in error


def test_strip_removes_prompt_status_line_and_restart_question() -> None:
    raw = "\n\nYou eat.\n\n\n   *** The End ***   \n\nWould you like to RESTART, QUIT?\n>      -= Hall =-1/3"
    assert clean_feedback(raw) == "You eat.\n\n*** The End ***"
    assert clean_feedback("You take it.\n\n>        -= Hall =-0/4") == "You take it."


def test_planner_opens_a_closed_door_before_walking() -> None:
    memory = Memory()
    memory.add_room(parse_observation(HALL))
    memory.containers["cabinet"] = ("hall", "open")
    task = Task(deliveries=(Deliver(item="vase", holder="table", room="hall"),))
    assert GoalPlanner(task).next(memory) == Intent(
        tool="open", args={"object": "oak door"}, purpose="explore"
    )


def test_planner_takes_required_things_first() -> None:
    memory = Memory()
    memory.add_room(parse_observation(HALL))
    task = Task(deliveries=(Deliver(item="red lamp", holder="shelf", room="attic"),))
    intent = GoalPlanner(task).next(memory)
    assert intent == Intent(tool="take", args={"object": "red lamp", "from": "table"}, purpose="fetch")


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("take red lamp from table", ("take", {"object": "red lamp", "from": "table"})),
        ("put red lamp on table", ("put_on", {"object": "red lamp", "onto": "table"})),
        ("insert lamp into fridge", ("insert", {"object": "lamp", "into": "fridge"})),
        ("unlock oak door with old key", ("unlock", {"object": "oak door", "key": "old key"})),
        ("Go North", ("go", {"direction": "north"})),
        ("look", ("look", {})),
        ("drop lamp", None),
    ],
)
def test_game_command_becomes_a_call(text: str, call: tuple[str, dict[str, str]] | None) -> None:
    made = tools.parse_command(tools.HOUSE, text)
    assert (made and (made[0], tools.parse_arguments(made[1]))) == call


def test_kitchen_commands_round_trip() -> None:
    for text in ("cook carrot with oven", "chop carrot with knife", "prepare meal", "eat meal", "inventory"):
        name, raw = tools.parse_command(tools.KITCHEN, text) or ("", "")
        assert tools.translate_call(tools.KITCHEN, name, raw) == (text, "")
