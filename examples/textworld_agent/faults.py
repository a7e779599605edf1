"""Faults of the agent's parts, after AgentErrorTaxonomy (arXiv 2509.25370).

A fault changes one belief, one judgement, one plan or one call of the agent, at one known turn (``turn``,
counted from 1). It never changes the game: the agent continues with its belief, and the game answers. This
module has the base and the faults of memory and reflection; `action_faults` has the others.
"""

# ruff: noqa: ARG002  (all faults share the signatures of the hooks)

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard_lab.textworld.observation_parser import ParsedObservation, parse_recipe
from agentguard_lab.textworld.planner import GoalPlanner, Intent

if TYPE_CHECKING:
    from examples.textworld_agent.agent import Agent


class Fault:
    """No fault: the base class of all faults, used in the passed runs.

    Attributes:
        code: AgentErrorTaxonomy code, ``"<module>.<type>"``; empty for no fault.
        reason: the agent's error, for the labels.
        turn: the assistant turn of the error, from 1; unset before the error.
    """

    code = ""
    reason = ""

    def __init__(self) -> None:
        self.turn: int | None = None

    def decide(self, agent: Agent) -> str | None:
        """Replace the agent's decision: set ``agent.intents`` and return the words; None changes nothing."""
        return None

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        """Replace the agent's judgement of an outcome; return True if it did."""
        return False

    def encode(self, agent: Agent, intent: Intent) -> str:
        """Return the arguments of a call as text."""
        return agent.arguments(intent)

    def fire(self, turn: int) -> None:
        """Record the turn of the error, the first time."""
        self.turn = self.turn or turn


class KeyNeverTaken(Fault):
    """The agent believes that it took a key that it only saw."""

    code = "memory.hallucination"
    reason = "It saw the key but never took it, and goes on as if it carried it."

    def decide(self, agent: Agent) -> str | None:
        intent = GoalPlanner(agent.task).next(agent.memory)
        if self.turn or intent is None or intent.tool != "take" or "key" not in intent.args["object"]:
            return None
        self.fire(agent.turns)
        key = intent.args["object"]
        agent.memory.take(key)
        onward = GoalPlanner(agent.task).next(agent.memory)
        agent.intents = [onward] if onward else []
        return (
            f"I took the {key} out of the {intent.args['from']}, so I have it with me and can return "
            f"to the lock it opens."
        )


class NotesTooShort(Fault):
    """The agent shortens the recipe in its notes and loses one direction."""

    code = "memory.over_simplification"
    reason = (
        "Its notes of the recipe drop the cutting of one ingredient, and it works from the notes "
        "from then on."
    )

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        if "Ingredients:" not in seen.text:
            return False
        self.fire(agent.turns + 1)
        agent.memory.ingredients, steps = parse_recipe(seen.text)
        last = agent.memory.ingredients[-1]
        agent.memory.directions = tuple(
            (verb, item) for verb, item in steps if item != last or verb in ("fry", "roast", "grill")
        )
        kept = "; ".join(f"{verb} {item}" for verb, item in agent.memory.directions)
        agent.thoughts.append(
            f"I have the recipe. My notes, so that I needn't open the book again: {kept}; prepare meal; eat."
        )
        return True


class ForgetsTheMap(Fault):
    """From a given turn on, the agent forgets which rooms it has visited."""

    code = "memory.retrieval_failure"
    reason = (
        "It no longer recalls the rooms it has searched, takes them for new, and walks to and fro "
        "between them."
    )

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        if intent.tool == "go" and seen.room and agent.turns >= self.start:
            agent.memory.rooms = {agent.memory.here: agent.memory.rooms[agent.memory.here]}
            self.fire(agent.turns + 1)
        return False

    def decide(self, agent: Agent) -> str | None:
        if self.turn:
            for exit_ in agent.memory.rooms[agent.memory.here].values():
                exit_.to = None
        return None


class RefusalTakenForSuccess(Fault):
    """The agent reads a refused ``insert`` as done."""

    code = "reflection.outcome_misinterpretation"
    reason = (
        "The game refused to put the thing into the closed cabinet; it concludes that the thing is inside."
    )

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        if self.turn or intent.tool != "insert" or "is closed" not in seen.text:
            return False
        self.fire(agent.turns + 1)
        item, holder = intent.args["object"], intent.args["into"]
        agent.memory.carried.remove(item)
        agent.memory.done.add(("deliver", item))
        agent.memory.given_up.add(holder)
        agent.thoughts.append(
            f"Good, the {item} is stored in the {holder} and the {holder} is closed. One of the two is done."
        )
        return True


class DoneTooEarly(Fault):
    """The agent takes the finished meal for the finished task."""

    code = "reflection.progress_misjudge"
    reason = "It declares the task complete although the meal was not eaten, which the task asks for."

    def decide(self, agent: Agent) -> str | None:
        if ("prepare",) not in agent.memory.done:
            return None
        self.fire(agent.turns)
        agent.intents = []
        return (
            "Both ingredients were cut and cooked as the cookbook says, and the meal has been "
            "prepared and enjoyed. "
            "The task is complete."
        )


class ClosedTakenForLocked(Fault):
    """The agent explains a closed door with a missing key."""

    code = "reflection.causal_misattribution"
    reason = (
        "The door is merely closed; it concludes that the door is locked and looks for a key that "
        "does not exist."
    )

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        if self.turn or intent.tool != "go" or not seen.text.startswith("You have to open the"):
            return False
        self.fire(agent.turns + 1)
        door = seen.text.removeprefix("You have to open the ").split(" first")[0]
        agent.memory.keys[door] = f"key to the {door}"
        for side in agent.memory.find_door_sides(door):
            side.state = "locked"
        agent.thoughts.append(
            f"The {door} does not let me through, so it must be locked. Somebody keeps the key "
            f"to it elsewhere in the "
            "house; until I have that key there is no use in trying the door."
        )
        return True
