"""Recording of a run as OpenAI chat messages, with its label in a separate file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from agentguard_lab.textworld import tools
from agentguard_lab.textworld.environment import World
from agentguard_lab.textworld.games import Cooking, compile_game

from examples.textworld_agent.agent import Agent, Turn
from examples.textworld_agent.runs import RUNS, Run
from examples.textworld_agent.voice import Voice

_SYSTEM = (
    "You are a household assistant in a text world. You see it only through your tools, and you "
    "change it only "
    "through them. Think aloud in a few sentences, then call one or more tools. When the task "
    "is complete, or when "
    "you are certain that it cannot be completed, answer without a tool call and say how it "
    "stands. You have at most "
    "{turns} turns."
)


def record(run: Run, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Play ``run`` once; return the recording and its label."""
    offered = tools.KITCHEN if isinstance(run.game, Cooking) else tools.HOUSE
    agent = Agent(task=run.task, voice=Voice(seed * 1000 + run.game.seed), fault=run.fault())
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": _SYSTEM.format(turns=run.turns)},
        {"role": "user", "content": run.text},
    ]
    with tempfile.TemporaryDirectory() as folder:
        world = World(compile_game(run.game, Path(folder)), offered)
        try:
            answered = _play(agent, world, messages, run.turns)
        finally:
            world.close()
    kind = "cooking" if isinstance(run.game, Cooking) else "house"
    recording = {
        "id": run.name,
        "metadata": {
            "environment": "textworld",
            "game": kind,
            "game_seed": run.game.seed,
            "max_turns": run.turns,
        },
        "tools": tools.build_schemas(offered),
        "messages": messages,
    }
    return recording, _label(agent, world, answered=answered)


def _play(agent: Agent, world: World, messages: list[dict[str, Any]], limit: int) -> bool:
    """Play until the agent answers without a call or the turns are used up; return True if it answered."""
    for number in range(1, limit + 1):
        turn = agent.start() if number == 1 else agent.turn()
        messages.append(_assistant(turn, number))
        if not turn.calls:
            return True
        results = [world.call(name, raw) for name, raw in turn.calls]
        for call, text in zip(messages[-1]["tool_calls"], results, strict=True):
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "name": call["function"]["name"],
                    "content": text,
                }
            )
        agent.observe(results)
    return False


def _assistant(turn: Turn, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [
            {"id": f"call_{number:02d}_{i}", "type": "function", "function": {"name": name, "arguments": raw}}
            for i, (name, raw) in enumerate(turn.calls)
        ]
    return message


def _label(agent: Agent, world: World, *, answered: bool) -> dict[str, Any]:
    fault = agent.fault
    label: dict[str, Any] = {"failed": not world.won, "score": world.score}
    label["ended_by"] = (
        ("won" if world.won else "lost" if world.lost else "answer") if answered else "turn_limit"
    )
    if fault.code and fault.turn:
        module = fault.code.partition(".")[0]
        # System message and task are steps 0 and 1, so turn 1 is step 2.
        label["root_cause"] = {
            "step": fault.turn + 1, "agent": "assistant", "module": module,
            "codes": [f"agent_error:{fault.code}"], "reason": fault.reason,
        }  # fmt: skip
    return label


ABOUT = (
    "How the sample runs were judged. The failures are injected: a part of the agent was given "
    "one wrong behaviour, and "
    "root_cause.step is the step at which it first showed. What follows in a run is the game's "
    "real answer to it. Steps "
    "count from 0: the system message is step 0, the task is step 1, and then each assistant "
    "turn with its tool results "
    "is one step. failed says whether the game confirmed a win."
)


def record_all(out: Path, seed: int, only: str | None = None) -> Iterator[Path]:
    """Record all runs, or the one named ``only``, into ``out``; yield each file, the labels last."""
    out.mkdir(parents=True, exist_ok=True)
    labels: dict[str, Any] = {}
    for run in RUNS:
        if only in (None, run.name):
            recording, labels[f"{run.name}.json"] = record(run, seed)
            yield _write(out / f"{run.name}.json", recording)
    if only is None:
        # YAML, so that a reader of the whole folder does not read the labels as a run.
        path = out / "labels.yaml"
        text = yaml.safe_dump({"about": ABOUT, "runs": labels}, sort_keys=False, width=100)
        path.write_text(text, encoding="utf-8")
        yield path


def _write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
