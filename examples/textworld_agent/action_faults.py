"""Faults of the planning and action parts; `faults` has the base and those of memory and reflection."""

# ruff: noqa: ARG002  (all faults share the signatures of the hooks)

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from agentguard_lab.textworld.observation_parser import ParsedObservation
from agentguard_lab.textworld.planner import GoalPlanner, Intent

from examples.textworld_agent.faults import Fault

if TYPE_CHECKING:
    from examples.textworld_agent.agent import Agent

_PARTICIPLE = {"chop": "chopped", "slice": "sliced", "dice": "diced"}


class RuleDropped(Fault):
    """The agent omits the constraint of the task from the plan."""

    code = "planning.constraint_ignorance"
    reason = (
        "The task says to close the fridge before leaving the kitchen; it leaves with the fridge "
        "open and never returns to it."
    )

    def decide(self, agent: Agent) -> str | None:
        intent = GoalPlanner(agent.task).next(agent.memory)
        if intent is not None and intent.purpose == "tidy":
            self.fire(agent.turns)
            agent.task = replace(agent.task, close_after=())
        return None


class WrongKey(Fault):
    """The agent insists on a key that does not fit."""

    code = "planning.impossible_action"
    reason = (
        "The game named the key that the door needs; it plans around another key, which does not "
        "fit, again and again."
    )
    _TRIES = (
        (
            "unlock",
            "I already carry the {key}. A key is a key; rather than search the whole house I'll "
            "use this one on the {door}.",
        ),
        ("open", "Old locks are sticky. Perhaps it turned after all; I'll pull at the {door}."),
        ("unlock", "I'll use the {key} again, more carefully this time."),
        ("unlock", "It must be a question of pressure. The {key} once more."),
        ("go", "Maybe I can simply push through to the {way}."),
        ("unlock", "Then back to my plan: {key}, {door}, turn."),
        ("open", "That felt different. Trying the handle of the {door}."),
        ("unlock", "I'm convinced that the {key} is the way in. Again."),
        ("unlock", "One more turn of the {key}, to the other side."),
        ("open", "And the handle again."),
        ("unlock", "I keep at it: the {key} in the {door}."),
        ("unlock", "The plan stands, the {key} has to work at some point."),
    )

    def decide(self, agent: Agent) -> str | None:
        memory = agent.memory
        spare = next((name for name in memory.carried if name.endswith("key")), None)
        if not memory.keys or spare is None:
            return None
        door, needed = next(iter(memory.keys.items()))
        if needed == spare:
            return None
        self.fire(agent.turns)
        assert self.turn
        tool, words = self._TRIES[(agent.turns - self.turn) % len(self._TRIES)]
        way = next(way for way, exit_ in memory.rooms[memory.here].items() if exit_.door == door)
        args = {"unlock": {"object": door, "key": spare}, "open": {"object": door}, "go": {"direction": way}}[
            tool
        ]
        agent.intents = [Intent(tool=tool, args=args)]
        return words.format(key=spare, door=door, way=way)

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        return self.turn is not None and seen.refused


class SurveyFirst(Fault):
    """The agent surveys the whole house before the task."""

    code = "planning.inefficient_plan"
    reason = (
        "It has the wanted thing in front of it and leaves it there to survey the whole house "
        "first; the turns run out."
    )

    def __init__(self) -> None:
        super().__init__()
        self._looked: set[str] = set()

    def decide(self, agent: Agent) -> str | None:
        planner, memory = GoalPlanner(agent.task), agent.memory
        intent = planner.next(memory)
        if self.turn is None and (intent is None or intent.tool != "take"):
            return None
        first = self.turn is None
        self.fire(agent.turns)
        here = [name for name, place in memory.things.items() if place.room == memory.here]
        here += [name for name, (room, _) in memory.containers.items() if room == memory.here]
        left = [name for name in here if name not in self._looked]
        onward = next(planner.explore(memory), None)
        if first and intent:
            item = intent.args["object"]
            plan = (
                f"I could take the {item} now, but I'd rather know the whole house before I move "
                f"anything. My plan: examine "
                f"what there is in every room, draw a complete map, and then come back for the {item}."
            )
        else:
            plan = ""
        if left:
            self._looked.add(left[0])
            agent.intents = [Intent(tool="examine", args={"object": left[0]})]
            return plan or agent.voice.say("survey", item=left[0], here=memory.here)
        if onward is None:
            return None
        agent.intents = [onward]
        return plan or agent.voice.intent(onward, memory)


class ForeignParameters(Fault):
    """The agent calls a tool with parameter names that the tool does not have."""

    code = "action.parameter_error"
    reason = (
        "It calls cut with parameters that the schema does not have, does not read the error, and "
        "gives cutting up."
    )

    def encode(self, agent: Agent, intent: Intent) -> str:
        if intent.tool != "cut":
            return agent.arguments(intent)
        self.fire(agent.turns)
        assert self.turn
        item, how = intent.args["object"], intent.args["how"]
        variants = (
            {"food": item, "style": how},
            {"item": item, "style": _PARTICIPLE[how]},
            {"object": item, "method": how, "tool": "knife"},
        )
        return json.dumps(variants[(agent.turns - self.turn) % len(variants)])

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        memory = agent.memory
        what = intent.args.get("how", "") + intent.args.get("object", "")
        if intent.tool != "cut" or memory.refusals.get(what, 0) < 2:
            return False
        memory.given_up |= {
            verb + item for verb, item in memory.directions if verb in ("chop", "slice", "dice")
        }
        agent.thoughts.append(
            "The cut tool does not work today, whatever I pass to it. I'll leave the cutting "
            "out and go on with the rest."
        )
        return True


class PythonDict(Fault):
    """The agent writes tool arguments as a Python literal instead of JSON."""

    code = "action.format_error"
    reason = "It writes the arguments of put_on in a form that is not JSON, and never repairs it."

    def encode(self, agent: Agent, intent: Intent) -> str:
        if intent.tool != "put_on":
            return agent.arguments(intent)
        self.fire(agent.turns)
        assert self.turn
        item, onto = intent.args["object"], intent.args["onto"]
        forms = (
            f"{{'object': '{item}', 'onto': '{onto}'}}",
            f"object={item}, onto={onto}",
            f'{{"object": "{item}", "onto": "{onto}"',
        )
        return forms[(agent.turns - self.turn) % len(forms)]


class SaysOneDoesAnother(Fault):
    """The agent means the oven and calls the stove."""

    code = "action.misalignment"
    reason = "It says that the food goes into the oven, as the recipe asks, and its call names the stove."

    def encode(self, agent: Agent, intent: Intent) -> str:
        if intent.args.get("appliance") != "oven" or self.turn:
            return agent.arguments(intent)
        self.fire(agent.turns)
        return json.dumps({**intent.args, "appliance": "stove"})


class SlipOnce(Fault):
    """A slip that the agent notices and repairs at once; it is not a root cause."""

    def __init__(self) -> None:
        super().__init__()
        self._slipped = False

    def encode(self, agent: Agent, intent: Intent) -> str:
        if intent.tool != "cut" or self._slipped:
            return agent.arguments(intent)
        self._slipped = True
        participle = _PARTICIPLE[intent.args["how"]]
        return json.dumps({**intent.args, "how": participle})

    def reflect(self, agent: Agent, intent: Intent, seen: ParsedObservation) -> bool:
        if not seen.text.startswith("Error: invalid"):
            return False
        agent.thoughts.append(
            "That was my mistake: the tool wants the plain verb, not the participle. Same call "
            "with the right word."
        )
        return True
