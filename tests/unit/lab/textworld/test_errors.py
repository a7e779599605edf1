"""Errors of the agent's parts: each changes one belief, in its own part, and only if it can."""

from __future__ import annotations

import copy
import json
import random

import pytest
from agentguard_lab.textworld.agent import Agent, subject
from agentguard_lab.textworld.belief_state import BelievedPlace, Exit, Memory
from agentguard_lab.textworld.error_process import Injection, Probe, Rates
from agentguard_lab.textworld.errors.catalogue import get_errors, list_module_errors
from agentguard_lab.textworld.malformed_calls import malform_call
from agentguard_lab.textworld.observation_parser import parse_observation
from agentguard_lab.textworld.planner import Deliver, Intent, Task
from agentguard_lab.textworld.result_interpretation import judge_result
from agentguard_lab.textworld.tools import HOUSE, KITCHEN, translate_call
from agentguard_lab.textworld.turn_text import encode_call

from agentguard.taxonomy.catalog import TaxonomyCatalog

HAT = Deliver(item="hat", holder="bed", room="bedroom")
DOLL = Deliver(item="doll", holder="sofa", room="hall")
LAMP = Deliver(item="lamp", holder="rack", room="attic")


def mover() -> Agent:
    """Return an agent in the middle of moving things."""
    memory = Memory(
        here="hall",
        rooms={
            "hall": {"north": Exit(None, "open", "attic"), "east": Exit(None, "open"),
                     "south": Exit("oak door", "locked"), "west": Exit(None, "open", "bedroom")},
            "attic": {"south": Exit(None, "open", "hall")},
            "bedroom": {"east": Exit(None, "open", "hall")},
        },
        things={"doll": BelievedPlace("hall", "table"), "vase": BelievedPlace("hall", "shelf"),
                "comb": BelievedPlace("attic", "chest")},
        carried=["hat", "long key"],
        containers={"chest": ("attic", "open"), "cabinet": ("hall", "unknown")},
        keys={"oak door": "small key"},
        done={("deliver", "lamp")},
    )  # fmt: skip
    return Agent(
        task=Task(deliveries=(HAT, DOLL, LAMP), close_after=("chest",)), seed=1, turns=5, memory=memory
    )


def cook() -> Agent:
    """Return an agent with a recipe."""
    memory = Memory(
        here="kitchen",
        rooms={"kitchen": {"north": Exit(None, "open", "hall")},
               "hall": {"south": Exit(None, "open", "kitchen")}},
        things={"cookbook": BelievedPlace("kitchen", "table")},
        carried=["carrot", "onion", "knife"],
        appliances={"stove": "kitchen", "oven": "kitchen"},
        ingredients=("carrot", "onion"),
        directions=(("chop", "carrot"), ("fry", "carrot"), ("roast", "onion")),
        done={("chop", "carrot")},
    )  # fmt: skip
    return Agent(task=Task(cook=True), seed=2, turns=5, memory=memory)


def situations() -> list[Agent]:
    """Return states that together make every error possible."""
    out = []
    for base, intent, text in (
        (mover, Intent(tool="go", args={"direction": "west"}), "You have to open the oak door first."),
        (
            mover,
            Intent(tool="take", args={"object": "doll", "from": "table"}),
            "You take the doll from the table.",
        ),
        (
            mover,
            Intent(tool="put_on", args={"object": "hat", "onto": "bed"}),
            "You can't see any such thing.",
        ),
        (mover, Intent(tool="close", args={"object": "chest"}), "-= Hall =-\nOn the table you see a doll."),
        (cook, Intent(tool="cook", args={"object": "carrot", "appliance": "stove"}), "You fried the carrot."),
        (
            cook,
            Intent(tool="cut", args={"object": "onion", "how": "dice"}),
            "Error: the tool 'cut' timed out.",
        ),
        (cook, Intent(tool="prepare_meal"), "Adding the meal to your inventory."),
    ):
        agent = base()
        agent.intents, agent.calls = [intent], [encode_call(intent)]
        agent.outcomes = [(intent, judge_result(intent, parse_observation(text)))]
        out.append(agent)
    here = mover()
    here.memory.here = "bedroom"
    here.memory.carried = ["long key"]
    here.memory.containers["wardrobe"] = ("bedroom", "unknown")
    return [*out, here]


def test_catalogue_has_every_code_of_the_four_modules() -> None:
    codes = {
        code.id
        for code in TaxonomyCatalog.load().get_taxonomy("agent_error").codes
        if not code.id.startswith("system.")
    }
    assert {error.code for error in get_errors().values()} == codes


@pytest.mark.parametrize("name", sorted(get_errors()))
def test_each_error_changes_a_belief_without_a_trace_in_text(name: str) -> None:
    error = get_errors()[name]
    able = [agent for agent in situations() if error.options(agent)]
    assert able, f"no situation gives {name} an option"
    for agent in able:
        before = copy.deepcopy(agent)
        assert error.apply_random(agent, random.Random(1))
        fields = ("task", "memory", "intents", "calls", "outcomes", "fixed", "survey", "amnesia", "habits")
        assert any(getattr(agent, field) != getattr(before, field) for field in fields)


@pytest.mark.parametrize("name", sorted(get_errors()))
def test_listing_options_changes_nothing(name: str) -> None:
    for agent in situations():
        before = copy.deepcopy(agent)
        first = get_errors()[name].options(agent)
        assert get_errors()[name].options(agent) == first
        assert (agent.memory, agent.task, agent.calls) == (before.memory, before.task, before.calls)


def test_error_without_option_does_not_occur() -> None:
    agent = Agent(task=Task(), seed=1)
    before = copy.deepcopy(agent.memory)
    struck = [error.name for error in get_errors().values() if error.apply_random(agent, random.Random(1))]
    assert struck == []
    assert agent.memory == before


@pytest.mark.parametrize("kind", ["tool", "json", "names", "value"])
def test_malformed_call_is_refused_or_misunderstood(kind: str) -> None:
    intents = (
        Intent(tool="take", args={"object": "hat", "from": "bed"}),
        Intent(tool="go", args={"direction": "north"}),
        Intent(tool="cook", args={"object": "carrot", "appliance": "oven"}),
        Intent(tool="cut", args={"object": "carrot", "how": "chop"}),
        Intent(tool="inventory"),
    )
    for intent in intents:
        sound = encode_call(intent)
        for seed in range(20):
            name, raw = malform_call(sound, kind, random.Random(seed))
            asked, error = translate_call((*HOUSE, *KITCHEN), name, raw)
            assert error or asked != translate_call((*HOUSE, *KITCHEN), *sound)[0]


def test_injection_occurs_only_at_its_turn_and_in_its_module() -> None:
    name = "memory.hallucination/carried"
    process = Injection(slips=0, name=name, turn=5)
    agent = mover()
    process.inject(agent, "planning")
    assert process.occurrences == []
    process.inject(agent, "memory")
    assert "doll" in agent.memory.carried
    assert [(one.turn, one.name) for one in process.occurrences] == [(5, name)]
    agent.turns = 6
    process.inject(agent, "memory")
    assert len(process.occurrences) == 1


def test_mindful_agent_makes_no_error() -> None:
    agent = mover()
    agent.mindful = 1
    process = Injection(slips=0, name="memory.hallucination/carried", turn=5)
    process.inject(agent, "memory")
    assert process.occurrences == []


def test_probe_records_possible_errors_and_changes_nothing() -> None:
    agent = mover()
    before = copy.deepcopy(agent.memory)
    probe = Probe(slips=0)
    for part in ("reflection", "memory", "planning", "action"):
        probe.inject(agent, part)
    assert agent.memory == before
    assert probe.possible["memory.hallucination/carried"] == [5]
    assert probe.occurrences == []


def test_errors_occur_at_their_rates() -> None:
    process = Rates(slips=0, rates={"memory.hallucination": 0.2})
    for seed in range(600):
        agent = mover()
        agent.seed = seed
        process.inject(agent, "memory")
    assert 80 < len(process.occurrences) < 160
    assert {one.name.partition("/")[0] for one in process.occurrences} == {"memory.hallucination"}


def test_modules_partition_the_catalogue() -> None:
    parts = ("memory", "reflection", "planning", "action")
    assert sum(len(list_module_errors(part)) for part in parts) == len(get_errors())


def test_abandoned_goal_matches_the_key_of_the_planner() -> None:
    assert subject(Intent(tool="cook", args={"object": "carrot", "appliance": "oven"})) == "roastcarrot"
    assert subject(Intent(tool="cut", args={"object": "carrot", "how": "chop"})) == "chopcarrot"
    assert subject(Intent(tool="take", args={"object": "hat"})) == "hat"
    assert subject(Intent(tool="prepare_meal")) == "prepare_meal"
    assert json.loads(encode_call(Intent(tool="go", args={"direction": "east"}))[1]) == {"direction": "east"}
