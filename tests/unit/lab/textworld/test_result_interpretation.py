"""Interpretation of results, and the resulting changes in the agent's beliefs."""

from __future__ import annotations

import pytest
from agentguard_lab.textworld.belief_state import BelievedPlace, Exit, Memory
from agentguard_lab.textworld.observation_parser import parse_observation
from agentguard_lab.textworld.planner import Intent
from agentguard_lab.textworld.result_interpretation import build_success, judge_result, update_beliefs

OPEN = Intent(tool="open", args={"object": "oak door"})
GO = Intent(tool="go", args={"direction": "north"})
CHEST = Intent(tool="open", args={"object": "chest"})
TAKE = Intent(tool="take", args={"object": "hat"})
LIST = Intent(tool="inventory")


@pytest.mark.parametrize(
    ("intent", "text", "kind", "names"),
    [
        (GO, "-= Hall =-\nYou are in a hall. On the table you see a red lamp.", "arrived", ("red lamp",)),
        (GO, "You have to open the oak door first.", "shut", ()),
        (OPEN, "You have to unlock the oak door with the long key first.", "need_key", ("long key",)),
        (CHEST, "You open the chest, revealing a hat.", "opened", ("hat",)),
        (TAKE, "You take the hat from the chest.", "took", ()),
        (TAKE, "You can't see any such thing.", "refused", ()),
        (TAKE, "Error: the tool 'take' timed out.", "tool_error", ()),
        (TAKE, "", "silent", ()),
        (LIST, "You are carrying: a hat and a long key.", "inventory", ("hat", "long key")),
        (LIST, "You are carrying nothing.", "inventory", ()),
    ],
)
def test_result_is_judged_by_its_text(intent: Intent, text: str, kind: str, names: tuple[str, ...]) -> None:
    outcome = judge_result(intent, parse_observation(text))
    assert (outcome.kind, outcome.names) == (kind, names)


def hall() -> Memory:
    return Memory(
        here="hall",
        rooms={"hall": {"north": Exit("oak door", "closed")}},
        containers={"chest": ("hall", "unknown")},
    )


def test_lock_is_remembered_with_its_key() -> None:
    memory = hall()
    update_beliefs(
        memory,
        OPEN,
        judge_result(OPEN, parse_observation("You have to unlock the oak door with the long key first.")),
    )
    assert memory.keys == {"oak door": "long key"}
    assert memory.rooms["hall"]["north"].state == "locked"


def test_opened_contents_are_remembered_at_their_place() -> None:
    memory = hall()
    intent = Intent(tool="open", args={"object": "chest"})
    update_beliefs(
        memory, intent, judge_result(intent, parse_observation("You open the chest, revealing a hat."))
    )
    assert memory.things == {"hat": BelievedPlace("hall", "chest")}
    assert memory.containers["chest"] == ("hall", "open")


def test_closed_container_is_not_searched_again() -> None:
    memory = hall()
    intent = Intent(tool="close", args={"object": "chest"})
    update_beliefs(memory, intent, judge_result(intent, parse_observation("You close the chest.")))
    assert memory.containers["chest"] == ("hall", "shut")


def test_refusal_mistaken_for_success_is_believed() -> None:
    memory = hall()
    intent = Intent(tool="take", args={"object": "hat"})
    update_beliefs(memory, intent, build_success(intent, parse_observation("You can't see any such thing.")))
    assert memory.carried == ["hat"]


def test_inventory_corrects_a_wrong_delivery() -> None:
    memory = Memory(carried=["vase"], done={("deliver", "hat"), ("deliver", "doll")})
    intent = Intent(tool="inventory")
    update_beliefs(memory, intent, judge_result(intent, parse_observation("You are carrying: a hat.")))
    assert memory.carried == ["hat"]
    assert memory.done == {("deliver", "doll")}


def test_walking_connects_the_rooms_in_both_directions() -> None:
    memory = hall()
    update_beliefs(
        memory,
        GO,
        judge_result(
            GO, parse_observation("-= Attic =-\nYou are in an attic. There is an exit to the south.")
        ),
    )
    assert memory.rooms["hall"]["north"].to == "attic"
    assert memory.rooms["attic"]["south"].to == "hall"
