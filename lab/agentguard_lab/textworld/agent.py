"""A scripted agent of four parts whose outputs are texts of their own: memory, reflection, planning, action.

A turn goes: reflection judges the results of the last turn, the judgement changes the beliefs, memory
recalls them, planning picks what to do next from them, action writes the call. At each part an error may
strike (see `process`): it changes a judgement, a belief, a plan or a call, and everything after it follows
from that change by the very code a sound run uses.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentguard_lab.textworld.belief_state import BelievedPlace, Memory
from agentguard_lab.textworld.malformed_calls import Call, miswrite
from agentguard_lab.textworld.observation_parser import read
from agentguard_lab.textworld.planner import Intent, KeyPlanner, Task
from agentguard_lab.textworld.result_interpretation import APPLIANCE_VERB, ActionOutcome, believe, judge
from agentguard_lab.textworld.turn_text import Words, encode, wanted_names

SAID: tuple[str, ...] = ("memory", "reflection", "planning", "action")
"""The parts in the order in which a turn tells them."""


class Process(Protocol):
    """Decides whether an error strikes a part of the agent in this turn."""

    def strike(self, agent: Agent, part: str) -> None:
        """Let an error strike, or do nothing."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """One turn: the texts of the parts, by module, and the calls; no calls ends the run."""

    modules: dict[str, str]
    calls: tuple[Call, ...] = ()

    @property
    def text(self) -> str:
        """What the agent says, all parts but the call."""
        return "\n".join(text for name, text in self.modules.items() if text and name != "action")


@dataclass(slots=True, kw_only=True)
class Habit:
    """A wrong way of calling one tool, kept for ``left`` more calls of it; ``kind`` as for `miswrite`."""

    tool: str
    kind: str
    left: int


@dataclass(slots=True, kw_only=True)
class Agent:
    """The agent's whole state; `snapshot` copies it.

    Attributes:
        task: what it believes that it was asked.
        seed: draws its wording and its choices; each turn has random numbers of its own.
        care: how likely it is, from 0 to 1, to check its beliefs when something fails or contradicts them.
        terse: how little it says, from 0 to 1.
        memory: what it believes.
        fixed: what it has set its mind on: done before anything the planner says.
        survey: how many more turns it spends on looking at everything.
        amnesia: whether it has ceased to recall which way leads where.
        habits: wrong ways of calling tools.
        outcomes: the judgements of this turn's results.
        intents, calls: what this turn does.
        stream: told apart when a turn is taken again, so that it is not taken in the same words.
        mindful: turns left in which it takes care because of a correction.
    """

    task: Task
    seed: int
    care: float = 0.5
    terse: float = 0.5
    memory: Memory = field(default_factory=Memory)
    turns: int = 0
    stream: int = 0
    mindful: int = 0
    survey: int = 0
    amnesia: bool = False
    fixed: list[Intent] = field(default_factory=list)
    pending: list[Intent] = field(default_factory=list)
    habits: list[Habit] = field(default_factory=list)
    looked: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    outcomes: list[tuple[Intent, ActionOutcome]] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    words: Words = field(default_factory=lambda: Words(random.Random(0), 0.5))  # noqa: S311

    def snapshot(self) -> Agent:
        """A copy that shares nothing that changes but its words, which each turn makes anew."""
        return replace(
            self,
            memory=self.memory.copy(),
            fixed=list(self.fixed),
            pending=list(self.pending),
            habits=[replace(habit) for habit in self.habits],
            looked=set(self.looked),
            remarks=list(self.remarks),
            results=list(self.results),
            outcomes=list(self.outcomes),
            intents=list(self.intents),
            calls=list(self.calls),
        )

    def dice(self, what: str) -> random.Random:
        """Random numbers of this turn for one use."""
        return random.Random(f"{what}:{self.seed}:{self.turns}:{self.stream}")  # noqa: S311

    def wanted(self) -> set[str]:
        """Names it has reason to look for."""
        return wanted_names(self.memory, self.task)

    def turn(self, errors: Process) -> AgentTurn:
        """Take the next turn."""
        self.turns += 1
        self.words = Words(self.dice("words"), self.terse)
        modules: dict[str, str] = {}
        if self.results:
            modules["reflection"] = self._reflect(errors)
            errors.strike(self, "memory")
            modules["memory"] = self.words.memory(self.memory, self.task)
        modules["planning"] = self._plan(errors)
        self.calls = [encode(intent) for intent in self.intents]
        self._use_habits()
        errors.strike(self, "action")
        modules["action"] = self.words.action(self.calls)
        ordered = {name: modules[name] for name in SAID if name in modules}
        return AgentTurn(modules=ordered, calls=tuple(self.calls))

    def observe(self, results: list[str]) -> None:
        """Take in the results of the last turn's calls; they are judged in the next turn."""
        self.results = results
        self.mindful = max(0, self.mindful - 1)

    def heed(self, turns: int) -> None:
        """Take a correction to heart: drop what it has set its mind on, look again, take care for a while."""
        self.mindful = turns
        self.fixed, self.habits, self.survey, self.amnesia = [], [], 0, False
        self.memory.given_up, self.memory.refusals = set(), {}
        self.pending = [Intent(tool="look"), Intent(tool="inventory")]

    # Reflection: what the last results meant.

    def _reflect(self, errors: Process) -> str:
        pairs = zip(self.intents, self.results, strict=True)
        self.outcomes = [(intent, judge(intent, read(text))) for intent, text in pairs]
        self.remarks = []
        errors.strike(self, "reflection")
        said = []
        for intent, outcome in self.outcomes:
            said.append(self.words.outcome(outcome, self.memory, self.wanted()))
            self._contradictions(outcome)
            believe(self.memory, intent, outcome)
            if outcome.refused:
                self._refused(intent, outcome)
            else:
                self.memory.refusals.pop(subject(intent), None)
        return self.words.reflection(said + self.remarks, self.memory, self.task)

    def _contradictions(self, outcome: ActionOutcome) -> None:
        """What it believes to carry lies before it: the careful notice."""
        for name in outcome.names if outcome.kind == "arrived" else ():
            if name in self.memory.carried and self._careful("contradiction"):
                self.memory.carried.remove(name)
                self.memory.things[name] = BelievedPlace(outcome.target, outcome.seen.things.get(name))
                self.remarks.append(self.words.remark("noticed", item=name))

    def _refused(self, intent: Intent, outcome: ActionOutcome) -> None:
        if outcome.kind in ("need_key", "shut", "holder_closed"):
            return
        what = subject(intent)
        count = self.memory.refusals[what] = self.memory.refusals.get(what, 0) + 1
        if outcome.kind == "tool_error" and self.habits and self._careful("habit"):
            self.habits = [habit for habit in self.habits if habit.tool != intent.tool]
            self.remarks.append(self.words.remark("corrected"))
        elif self._check(intent, outcome):
            return
        elif count >= 3:
            self.give_up(intent)
        else:
            self.remarks.append(self.words.remark("again"))

    def give_up(self, intent: Intent) -> None:
        """Set an aim aside for good."""
        what = subject(intent)
        self.memory.given_up.add(what)
        if intent.tool == "go":
            exit_ = self.memory.rooms.get(self.memory.here, {}).get(intent.args["direction"])
            if exit_:
                exit_.to = self.memory.here
        self.remarks.append(
            self.words.remark("give_up", what=intent.args.get("object", what.replace("_", " ")))
        )

    def _check(self, intent: Intent, outcome: ActionOutcome) -> bool:
        """A careful agent looks into a refusal; True if it does."""
        unread = "I only understood" in outcome.seen.text
        if outcome.kind != "refused" or unread or not self._careful("check"):
            return False
        if intent.tool == "take":
            self.memory.things.pop(intent.args["object"], None)
            self.pending.append(Intent(tool="look"))
        elif intent.tool == "prepare_meal" and "cookbook" in self.memory.things:
            self.pending.append(Intent(tool="examine", args={"object": "cookbook"}, purpose="recipe"))
        elif intent.tool == "go":
            self.pending.append(Intent(tool="look"))
        else:
            self.pending.append(Intent(tool="inventory"))
        return True

    def _careful(self, what: str) -> bool:
        return self.mindful > 0 or self.dice(what).random() < self.care

    # Planning: what to do next.

    def _plan(self, errors: Process) -> str:
        if self.turns == 1:
            self.intents = [Intent(tool="look"), Intent(tool="inventory")]
            return self.words.start()
        self._forget()
        intent = self._choose()
        self.intents = [] if intent is None else [intent]
        errors.strike(self, "planning")
        chosen = self.intents[0] if self.intents else None
        return self.words.planning(chosen, complete=KeyPlanner(self.task).complete(self.memory))

    def _choose(self) -> Intent | None:
        if self.pending:
            return self.pending.pop(0)
        if self.fixed:
            return self.fixed.pop(0)
        if self.survey > 0:
            self.survey -= 1
            onward = self.look_over()
            if onward is not None:
                return onward
        return KeyPlanner(self.task).next(self.memory)

    def look_over(self) -> Intent | None:
        """The next thing to look at: what is here first, then a room it has not been in."""
        memory = self.memory
        here = [name for name, place in memory.things.items() if place.room == memory.here]
        here += [name for name, (room, _) in memory.containers.items() if room == memory.here]
        for name in here:
            if name not in self.looked:
                self.looked.add(name)
                return Intent(tool="examine", args={"object": name})
        for way in memory.untried(memory.here):
            exit_ = memory.rooms[memory.here][way]
            if exit_.door is None or exit_.state == "open":
                return Intent(tool="go", args={"direction": way}, purpose="explore")
        return None

    def _forget(self) -> None:
        if self.amnesia:
            for exit_ in self.memory.rooms.get(self.memory.here, {}).values():
                exit_.to = None

    # Action: the calls.

    def _use_habits(self) -> None:
        for place, call in enumerate(self.calls):
            for habit in [habit for habit in self.habits if habit.tool == call[0]]:
                habit.left -= 1
                self.calls[place] = miswrite(call, habit.kind, self.dice(f"habit:{place}"))
        self.habits = [habit for habit in self.habits if habit.left > 0]


def subject(intent: Intent) -> str:
    """What an intent is about, as it is counted and given up: the planner leaves out what was given up."""
    target = intent.args.get("object", "")
    if intent.tool == "cut":
        return intent.args["how"] + target
    if intent.tool == "cook":
        return APPLIANCE_VERB.get(intent.args["appliance"], "") + target
    return target or (f"way {intent.args['direction']}" if intent.tool == "go" else intent.tool)
