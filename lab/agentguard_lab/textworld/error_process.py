"""Processes that inject errors into the agent: none, one at a known turn, or at a rate per turn.

A slip is a small error that any run makes and recovers from at once: a malformed call, a needless look. Slips
occur at the same rate in all runs, failed or passed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentguard_lab.textworld.agent import Agent
from agentguard_lab.textworld.errors.catalogue import get_errors, list_module_errors
from agentguard_lab.textworld.malformed_calls import malform_call
from agentguard_lab.textworld.planner import Intent
from agentguard_lab.textworld.turn_text import encode_call

SLIP_RATE = 0.06
"""Slips per turn."""
_SLIPS = ("names", "json", "tool", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOccurrence:
    """An injected error: its turn (from 1) and its name."""

    turn: int
    name: str


@dataclass(slots=True)
class ErrorProcess:
    """Process without errors except slips, and base class of the others.

    Attributes:
        slips: probability of a slip in a turn.
        occurrences: injected errors, for the evaluator; detectors have no access to them.
    """

    slips: float = SLIP_RATE
    occurrences: list[ErrorOccurrence] = field(default_factory=list)

    def inject(self, agent: Agent, part: str) -> None:
        """Inject a slip and then an error into one module, or neither."""
        if agent.turns > 1 and not agent.mindful:
            self._slip(agent, part)
            name = self.choose(agent, part, agent.create_rng(f"error:{part}"))
            if name and get_errors()[name].apply_random(agent, agent.create_rng(f"strike:{part}")):
                self.occurrences.append(ErrorOccurrence(turn=agent.turns, name=name))

    def choose(self, agent: Agent, part: str, rng: random.Random) -> str:  # noqa: ARG002
        """Return the name of the error to inject now, or an empty string."""
        return ""

    def _slip(self, agent: Agent, part: str) -> None:
        rng = agent.create_rng(f"slip:{part}")
        if part == "planning" and agent.intents and rng.random() < self.slips * 0.6:
            agent.intents = [_detour(agent, rng)]
        elif part == "action" and self._may_miswrite(agent) and rng.random() < self.slips * 0.4:
            agent.calls[0] = malform_call(agent.calls[0], rng.choice(_SLIPS), rng)

    @staticmethod
    def _may_miswrite(agent: Agent) -> bool:
        """Return whether a slip is allowed; after a refusal, more slips would look like a lasting fault."""
        is_correct = bool(agent.calls) and agent.calls[0] == encode_call(agent.intents[0])
        return is_correct and not any(outcome.refused for _, outcome in agent.outcomes)


@dataclass(slots=True)
class Injection(ErrorProcess):
    """Process that injects one error at one turn."""

    name: str = ""
    turn: int = 0

    def choose(self, agent: Agent, part: str, rng: random.Random) -> str:  # noqa: ARG002
        """Return the name of the error in its turn."""
        due = agent.turns == self.turn and get_errors()[self.name].module == part
        return self.name if due else ""


@dataclass(slots=True)
class Probe(ErrorProcess):
    """Process without errors that records in ``possible`` the turns in which each error is possible."""

    possible: dict[str, list[int]] = field(default_factory=dict)

    def choose(self, agent: Agent, part: str, rng: random.Random) -> str:  # noqa: ARG002
        """Record the possible errors; return an empty string."""
        for error in list_module_errors(part):
            if error.options(agent):
                self.possible.setdefault(error.name, []).append(agent.turns)
        return ""


@dataclass(slots=True)
class Rates(ErrorProcess):
    """Process that injects errors at a rate per turn by code; it draws one of the possible variants."""

    rates: Mapping[str, float] = field(default_factory=dict)

    def choose(self, agent: Agent, part: str, rng: random.Random) -> str:
        """Draw for each code of the module; return an error of the first code drawn."""
        for code, rate in self.rates.items():
            if code.partition(".")[0] == part and rng.random() < rate:
                able = [e.name for e in list_module_errors(part) if e.code == code and e.options(agent)]
                if able:
                    return rng.choice(able)
        return ""


def _detour(agent: Agent, rng: random.Random) -> Intent:
    """Return an unnecessary inspection."""
    memory = agent.memory
    local_names = sorted(name for name, place in memory.things.items() if place.room == memory.here)
    local_names += sorted(name for name, (room, _) in memory.containers.items() if room == memory.here)
    choices = [
        Intent(tool="examine", args={"object": name}) for name in local_names[:3] if name != "cookbook"
    ]
    return rng.choice([*choices, Intent(tool="inventory"), Intent(tool="look")])
