"""A real model as the agent of `recovery.py`, through any OpenAI-compatible endpoint.

In each turn the model receives the task, its latest turns and the guard's hints, and names one command:

- ``tools``: the model makes a tool call of the API;
- ``choice``: the server restricts the output to the commands that the game admits (vLLM's
  ``structured_outputs``), for models too small to write a call; the benchmark records the equivalent tool
  call;
- ``text``: the model writes text, and the last line that is a command counts.

A turn without a call ends the attempt. Correction, rollback and restart change only the model's input and the
state of the game. The model may ignore a hint.
"""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from typing import Any

from agentguard_lab.textworld import tools
from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.run import tool_specs
from agentguard_lab.textworld.scenarios import Scenario

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory

AGENT = "player"
WINDOW = 12
"""Number of latest turns in the model's input."""
GIVE_UP = "give up"
_ASKED = {
    "tools": "Call one tool a turn. Answer without a call when the task is done or cannot be done.",
    "choice": f"Answer with one command a turn, or with '{GIVE_UP}'.",
    "text": "Answer with one command a turn, e.g. 'go north', 'open fridge', 'take apple from table', "
    "'put apple on shelf', 'cook apple with oven', 'inventory', or 'give up', on a line of its own.",
}


def client(base_url: str, api_key: str) -> Any:
    """Return the endpoint's client; it retries transient errors with a growing pause."""
    from openai import OpenAI

    return OpenAI(base_url=base_url, api_key=api_key, max_retries=5, timeout=120.0)


def first_model(endpoint: Any) -> str:
    """Return the first model that the endpoint lists."""
    return str(next(iter(endpoint.models.list())).id)


class ChatAgent:
    """A model in a game.

    Args:
        given: the game.
        games: the store of the game; for the mode ``choice`` it must request the admissible commands.
        endpoint: result of `client`.
        model: name of the model at the endpoint.
        mode: ``tools``, ``choice`` or ``text``.
        seed: seed of the model's sampling, if the server supports one.
    """

    def __init__(
        self, given: Scenario, games: GameLibrary, endpoint: Any, *, model: str, mode: str, seed: int
    ) -> None:
        self.given, self._endpoint, self._model, self._mode, self._seed = given, endpoint, model, mode, seed
        self._offered = tools.KITCHEN if given.task.cook else tools.HOUSE
        self._world = games.get_world(given, self._offered)
        self._world.restore(())
        self._start = self._world.call("look", "{}")
        self._typed: list[tuple[str, ...]] = [()]
        self._steps: list[Step] = []
        self._told: dict[int, tuple[str, ...]] = {}
        self._corrections, self._stopped = 0, False
        self._turn = Step(index=0, source=Source.AGENT, agent=AGENT)

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(
            id=f"{self.given.id}-{self._seed}",
            format="event_log",
            task=self.given.text,
            steps=tuple(self._steps),
            tools=tool_specs(self._offered),
            extra={"environment": "textworld", "max_turns": self.given.max_turns},
        )

    @property
    def done(self) -> bool:
        return self._stopped or self._over or len(self._steps) >= self.given.max_turns

    @property
    def won(self) -> bool:
        self._world.restore(self._typed[-1])
        return self._world.won

    @property
    def struck(self) -> tuple[int, ...]:
        return ()

    def think(self) -> Step:
        said = self._ask()
        call = self._call(said)
        index = len(self._steps)
        calls = () if call is None else (_tool_call(index, *call),)
        text = str(said.content or "") if self._mode != "choice" else ""
        self._turn = Step(index=index, source=Source.AGENT, agent=AGENT, content=text, tool_calls=calls)
        return self._turn

    def act(self) -> Step:
        self._world.restore(self._typed[-1])
        seen = []
        for call in self._turn.tool_calls:
            text = self._world.call(call.name, call.raw_arguments or "{}")
            failed = text.startswith("Error:") or None
            seen.append(Observation(content=text, call_id=call.id, tool=call.name, is_error=failed))
        step = replace(self._turn, observations=tuple(seen))
        self._steps.append(step)
        self._typed.append(tuple(self._world.commands))
        self._stopped = not step.tool_calls
        return step

    def refuse(self, correction: str) -> None:
        self.correct(correction)

    def truncate(self, to_step: int, correction: str) -> None:
        del self._steps[to_step:], self._typed[to_step + 1 :]
        self._told = {at: said for at, said in self._told.items() if at <= to_step}
        self.correct(correction)

    def correct(self, correction: str) -> None:
        self._corrections += 1
        self._stopped = False
        if correction:
            at = len(self._steps)
            self._told[at] = (*self._told.get(at, ()), correction)

    def copy(self) -> ChatAgent:
        made = copy(self)
        made._steps, made._typed, made._told = list(self._steps), list(self._typed), dict(self._told)
        return made

    @property
    def _over(self) -> bool:
        self._world.restore(self._typed[-1])
        return self._world.over

    def _ask(self) -> Any:
        """Return the model's message; no two requests for the same place use the same seed."""
        body: dict[str, Any] = {"seed": hash((self._seed, len(self._steps), self._corrections)) % 2**31}
        if self._mode == "tools":
            body["tools"] = tools.build_schemas(self._offered)
        elif self._mode == "choice":
            body["extra_body"] = {"structured_outputs": {"choice": [*self._choices(), GIVE_UP]}}
        reply = self._endpoint.chat.completions.create(
            model=self._model, messages=self._messages(), max_tokens=200, temperature=0.7, **body
        )
        return reply.choices[0].message

    def _choices(self) -> list[str]:
        """Return the commands that the game admits and that have an equivalent tool."""
        self._world.restore(self._typed[-1])
        return [text for text in self._world.admissible if tools.parse_command(self._offered, text)]

    def _call(self, said: Any) -> tuple[str, str] | None:
        if self._mode == "tools":
            made = (said.tool_calls or [None])[0]
            return None if made is None else (made.function.name, made.function.arguments)
        lines = [line for line in str(said.content or "").splitlines() if line.strip()]
        calls = (tools.parse_command(self._offered, line) for line in reversed(lines))
        return next((call for call in calls if call is not None), None)

    def _messages(self) -> list[dict[str, Any]]:
        first = max(0, len(self._steps) - WINDOW)
        task = f"{self.given.text}\n\n{self._start}"
        held: list[dict[str, Any]] = [
            {"role": "system", "content": f"You play a text game. {_ASKED[self._mode]}"},
            {"role": "user", "content": "\n\n".join((task, *self._told.get(0, ())))},
        ]
        for step in self._steps[first:]:
            held += self._build_results(step)
            held += [{"role": "user", "content": text} for text in self._told.get(step.index + 1, ())]
        return held

    def _build_results(self, step: Step) -> list[dict[str, Any]]:
        seen = [one.content for one in step.observations]
        if self._mode != "tools":
            said = [_command(call) for call in step.tool_calls] or [step.content or GIVE_UP]
            return [
                {"role": "assistant", "content": "\n".join(said)},
                {"role": "user", "content": "\n".join(seen) or "You gave up."},
            ]
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.raw_arguments}}
            for c in step.tool_calls
        ]
        message: dict[str, Any] = {"role": "assistant", "content": step.content}
        results = zip(step.tool_calls, seen, strict=True)
        answers = [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in results]
        return [message | ({"tool_calls": calls} if calls else {}), *answers]


def _tool_call(index: int, name: str, raw: str) -> ToolCall:
    return ToolCall(
        id=f"call_{index:03d}", name=name, arguments=tools.parse_arguments(raw), raw_arguments=raw
    )


def _command(call: ToolCall) -> str:
    """Return the command of a tool call; if the call is not a command, return its text."""
    text, _ = tools.translate_call((call.name,), call.name, call.raw_arguments or "{}")
    return text or f"{call.name} {json.dumps(call.arguments)}"
