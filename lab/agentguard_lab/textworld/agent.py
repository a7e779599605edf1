"""Scripted agent with four modules, each with its own text: memory, reflection, planning, action.

In a turn, reflection judges the results of the last turn, and the judgement changes the beliefs. Memory
recalls the beliefs, planning chooses the next intent, and action writes the call. In each module an error
may be injected (see `error_process`). It changes a judgement, a belief, a plan or a call. The same code as in
a run without errors derives the consequences.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentguard_lab.textworld.belief_state import BelievedPlace, Memory
from agentguard_lab.textworld.malformed_calls import Call, malform_call
from agentguard_lab.textworld.observation_parser import parse_observation
from agentguard_lab.textworld.planner import Intent, KeyPlanner, Task
from agentguard_lab.textworld.result_interpretation import (
    APPLIANCE_VERB,
    ActionOutcome,
    judge_result,
    update_beliefs,
)
from agentguard_lab.textworld.turn_text import Words, encode_call, list_wanted_names

MODULES: tuple[str, ...] = ("memory", "reflection", "planning", "action")
"""The modules in the order of their texts in a turn."""


class Process(Protocol):
    """Process that decides whether an error is injected into a module in this turn."""

    def inject(self, agent: Agent, part: str) -> None:
        """Inject an error into a module of the agent, or do nothing."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """One turn: the texts of the modules, and the calls; a turn without calls ends the run."""

    modules: dict[str, str]
    calls: tuple[Call, ...] = ()

    @property
    def text(self) -> str:
        """Text of the agent, without the action module."""
        return "\n".join(text for name, text in self.modules.items() if text and name != "action")


@dataclass(slots=True, kw_only=True)
class Habit:
    """Wrong form of the calls of one tool, for ``left`` more calls; ``kind`` as for `miswrite`."""

    tool: str
    kind: str
    left: int


@dataclass(slots=True, kw_only=True)
class Agent:
    """State of the agent; `snapshot` copies it.

    Attributes:
        task: the agent's understanding of the task.
        seed: seed of wording and choices; each turn draws from its own random numbers.
        care: probability that the agent checks its beliefs after a failure or contradiction.
        terse: brevity of the texts, from 0 to 1.
        memory: the beliefs.
        fixed: intents that the agent follows before asking the planner.
        survey: number of further turns in which the agent only inspects things.
        amnesia: whether the agent no longer recalls the destinations of exits.
        habits: wrong forms of calls.
        outcomes: judgements of the results of the last turn.
        intents, calls: intents and calls of this turn.
        stream: number that makes the random numbers of a repeated turn different.
        mindful: number of turns in which the agent is careful after a correction.
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
        """Return a copy without shared mutable state, except the wording, which each turn creates."""
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

    def create_rng(self, purpose: str) -> random.Random:
        """Return a generator of random numbers for one purpose in this turn."""
        return random.Random(f"{purpose}:{self.seed}:{self.turns}:{self.stream}")  # noqa: S311

    def list_wanted(self) -> set[str]:
        """Return the names of things that the agent has a reason to look for."""
        return list_wanted_names(self.memory, self.task)

    def take_turn(self, errors: Process) -> AgentTurn:
        """Take the next turn."""
        self.turns += 1
        self.words = Words(self.create_rng("words"), self.terse)
        modules: dict[str, str] = {}
        if self.results:
            modules["reflection"] = self._reflect(errors)
            errors.inject(self, "memory")
            modules["memory"] = self.words.render_memory(self.memory, self.task)
        modules["planning"] = self._plan(errors)
        self.calls = [encode_call(intent) for intent in self.intents]
        self._use_habits()
        errors.inject(self, "action")
        modules["action"] = self.words.render_action(self.calls)
        ordered = {name: modules[name] for name in MODULES if name in modules}
        return AgentTurn(modules=ordered, calls=tuple(self.calls))

    def observe(self, results: list[str]) -> None:
        """Store the results of the last calls; the next turn judges them."""
        self.results = results
        self.mindful = max(0, self.mindful - 1)

    def accept_correction(self, turns: int) -> None:
        """Accept a correction: drop fixed intents and habits, look again, and be careful for some turns."""
        self.mindful = turns
        self.fixed, self.habits, self.survey, self.amnesia = [], [], 0, False
        self.memory.given_up, self.memory.refusals = set(), {}
        self.pending = [Intent(tool="look"), Intent(tool="inventory")]

    def _reflect(self, errors: Process) -> str:
        pairs = zip(self.intents, self.results, strict=True)
        self.outcomes = [(intent, judge_result(intent, parse_observation(text))) for intent, text in pairs]
        self.remarks = []
        errors.inject(self, "reflection")
        sentences = []
        for intent, outcome in self.outcomes:
            sentences.append(self.words.render_outcome(outcome, self.memory, self.list_wanted()))
            self._detect_contradictions(outcome)
            update_beliefs(self.memory, intent, outcome)
            if outcome.refused:
                self._handle_refusal(intent, outcome)
            else:
                self.memory.refusals.pop(subject(intent), None)
        return self.words.render_reflection(sentences + self.remarks, self.memory, self.task)

    def _detect_contradictions(self, outcome: ActionOutcome) -> None:
        """Detect, if the agent is careful, that a thing it believes to carry is in the room."""
        for name in outcome.names if outcome.kind == "arrived" else ():
            if name in self.memory.carried and self._is_careful("contradiction"):
                self.memory.carried.remove(name)
                self.memory.things[name] = BelievedPlace(outcome.target, outcome.observation.things.get(name))
                self.remarks.append(self.words.render_remark("noticed", item=name))

    def _handle_refusal(self, intent: Intent, outcome: ActionOutcome) -> None:
        if outcome.kind in ("need_key", "shut", "holder_closed"):
            return
        what = subject(intent)
        count = self.memory.refusals[what] = self.memory.refusals.get(what, 0) + 1
        if outcome.kind == "tool_error" and self.habits and self._is_careful("habit"):
            self.habits = [habit for habit in self.habits if habit.tool != intent.tool]
            self.remarks.append(self.words.render_remark("corrected"))
        elif self._check(intent, outcome):
            return
        elif count >= 3:
            self.give_up(intent)
        else:
            self.remarks.append(self.words.render_remark("again"))

    def give_up(self, intent: Intent) -> None:
        """Abandon the aim of an intent permanently."""
        what = subject(intent)
        self.memory.given_up.add(what)
        if intent.tool == "go":
            exit_ = self.memory.rooms.get(self.memory.here, {}).get(intent.args["direction"])
            if exit_:
                exit_.to = self.memory.here
        self.remarks.append(
            self.words.render_remark("give_up", what=intent.args.get("object", what.replace("_", " ")))
        )

    def _check(self, intent: Intent, outcome: ActionOutcome) -> bool:
        """Plan a check after a refusal, if the agent is careful; return whether it does."""
        unread = "I only understood" in outcome.observation.text
        if outcome.kind != "refused" or unread or not self._is_careful("check"):
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

    def _is_careful(self, what: str) -> bool:
        return self.mindful > 0 or self.create_rng(what).random() < self.care

    def _plan(self, errors: Process) -> str:
        if self.turns == 1:
            self.intents = [Intent(tool="look"), Intent(tool="inventory")]
            return self.words.render_start()
        self._forget()
        intent = self._choose()
        self.intents = [] if intent is None else [intent]
        errors.inject(self, "planning")
        chosen = self.intents[0] if self.intents else None
        return self.words.render_planning(chosen, complete=KeyPlanner(self.task).complete(self.memory))

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
        """Return the next inspection: first the things in this room, then an unvisited room."""
        memory = self.memory
        local_names = [name for name, place in memory.things.items() if place.room == memory.here]
        local_names += [name for name, (room, _) in memory.containers.items() if room == memory.here]
        for name in local_names:
            if name not in self.looked:
                self.looked.add(name)
                return Intent(tool="examine", args={"object": name})
        for way in memory.list_untried_exits(memory.here):
            exit_ = memory.rooms[memory.here][way]
            if exit_.door is None or exit_.state == "open":
                return Intent(tool="go", args={"direction": way}, purpose="explore")
        return None

    def _forget(self) -> None:
        if self.amnesia:
            for exit_ in self.memory.rooms.get(self.memory.here, {}).values():
                exit_.to = None

    def _use_habits(self) -> None:
        for index, call in enumerate(self.calls):
            for habit in [habit for habit in self.habits if habit.tool == call[0]]:
                habit.left -= 1
                self.calls[index] = malform_call(call, habit.kind, self.create_rng(f"habit:{index}"))
        self.habits = [habit for habit in self.habits if habit.left > 0]


def subject(intent: Intent) -> str:
    """Return the key under which refusals of an intent are counted; the planner skips abandoned keys."""
    target = intent.args.get("object", "")
    if intent.tool == "cut":
        return intent.args["how"] + target
    if intent.tool == "cook":
        return APPLIANCE_VERB.get(intent.args["appliance"], "") + target
    return target or (f"way {intent.args['direction']}" if intent.tool == "go" else intent.tool)
