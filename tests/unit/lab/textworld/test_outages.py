"""Faults outside the agent."""

from __future__ import annotations

import random

from agentguard_lab.textworld.agent import AgentTurn
from agentguard_lab.textworld.outages import Outage, ToolOutage, create_outage, generate_transient_outages


def test_outage_affects_its_tool_only_in_its_turns() -> None:
    one = Outage(start=3, length=2, tool="open", text="Error: {tool} is down.")
    trouble = ToolOutage(outages=(one,))
    assert trouble.get_failure("open", 3) == trouble.get_failure("open", 4) == "Error: open is down."
    assert (
        trouble.get_failure("open", 2)
        is trouble.get_failure("open", 5)
        is trouble.get_failure("go", 3)
        is None
    )


def test_silent_outage_returns_nothing() -> None:
    one = create_outage(random.Random(1), start=1, length=1, tool=None, silent=True)
    assert ToolOutage(outages=(one,)).get_failure("go", 1) == ""


def test_cut_reply_loses_its_calls_and_half_of_its_last_part() -> None:
    turn = AgentTurn(
        modules={"memory": "I hold a hat.", "planning": "I go north.", "action": "go"}, calls=(("go", "{}"),)
    )
    cut = ToolOutage.cut(turn)
    assert cut == AgentTurn(modules={"memory": "I hold a hat.", "planning": "I go "})


def test_transient_faults_occur_at_their_rate_and_depend_on_the_seed() -> None:
    hits = [len(generate_transient_outages(seed, 50, rate=0.1).outages) for seed in range(200)]
    assert 4 < sum(hits) / len(hits) < 6
    assert generate_transient_outages(7, 50, rate=0.1) == generate_transient_outages(7, 50, rate=0.1)
    assert all(
        one.length == 1 and one.start >= 2 for one in generate_transient_outages(7, 50, rate=0.1).outages
    )
