"""Ledger of a run in its bundle, and its comparison with a replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from agentguard import Guard
from agentguard.bundles import RunBinding, read_bundle, record_run, replay_bundle, verify_bundle
from agentguard.cli.app import build_app
from agentguard.trajectory.model import Trajectory
from examples import bundle_replay

TOKEN = "sk-proj-0123456789abcdefghijklmnopqrstuvwxyz"


class Desk:
    """Agent that books a seat twice; the first answer of the tool is lost."""

    def __init__(self, effect: str = "write") -> None:
        self.guard, self.count = Guard(), 0
        self.guard.tool(effect=effect)(self.book)

    def book(self, seat: int, token: str) -> str:
        """Book a seat."""
        self.count += 1
        if self.count == 1:
            raise TimeoutError("no answer")
        return f"seat {seat} is yours"

    def call_llm(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        """Book with a token until there are two results."""
        results = sum(message["role"] == "tool" for message in messages)
        if results == 2:
            return "Seat 4 is booked."
        function = {"name": "book", "arguments": json.dumps({"seat": 4, "token": TOKEN})}
        return {
            "role": "assistant",
            "tool_calls": [{"id": f"{results}", "type": "function", "function": function}],
        }

    def run(self, binding: RunBinding) -> Trajectory:
        """Run the agent and give its session to the binding."""
        model, tools = binding.bind_model(self.call_llm), binding.bind_tools([self.book])
        with self.guard.run("Book seat 4.", tools=tools, id=binding.run_id) as run:
            binding.add_session(run.session)
            while not run.done:
                run.tools(run.model(model))
        return run.trajectory


def test_bundle_has_the_ledger_without_secrets_and_the_replay_repeats_it(tmp_path: Path) -> None:
    file, desk = tmp_path / "booking.agb", Desk()
    bundle = record_run(desk.run, file, guard=desk.guard)
    (effect,) = bundle.effects
    assert (effect.tool, effect.effect, effect.state) == ("book", "write", "ambiguous")
    assert effect.arguments["seat"] == 4
    assert TOKEN not in file.read_bytes().decode(errors="replace")
    assert read_bundle(file) == bundle
    result = replay_bundle(bundle, Desk().run)
    assert (result.is_equal, result.effects_divergence) == (True, None)


def test_replay_with_another_effect_class_names_the_field(tmp_path: Path) -> None:
    desk = Desk()
    bundle = record_run(desk.run, tmp_path / "booking.agb", guard=desk.guard)
    assert replay_bundle(bundle, Desk("destructive").run, mode="scripted").effects_divergence == "0.effect"


def test_replay_without_a_session_differs_from_a_ledger(tmp_path: Path) -> None:
    desk = Desk()
    bundle = record_run(desk.run, tmp_path / "booking.agb", guard=desk.guard)

    def run_without_session(binding: RunBinding) -> Trajectory:
        vars(binding)["add_session"] = lambda _: None
        return Desk().run(binding)

    assert replay_bundle(bundle, run_without_session).effects_divergence == "0"


def test_bundle_without_session_has_no_member_for_effects(tmp_path: Path) -> None:
    desk, file = Desk(), tmp_path / "booking.agb"

    def run_without_session(binding: RunBinding) -> Trajectory:
        vars(binding)["add_session"] = lambda _: None
        return desk.run(binding)

    bundle = record_run(run_without_session, file, guard=desk.guard)
    assert bundle.effects == ()
    assert "effects.json" not in verify_bundle(file)
    assert replay_bundle(bundle, Desk().run).effects_divergence is None


def test_commands_print_the_ledger(tmp_path: Path) -> None:
    file = tmp_path / "booking.agb"
    record_run(bundle_replay.book_seat, file, guard=bundle_replay.guard)
    app, runner = build_app(), CliRunner()
    shown = json.loads(runner.invoke(app, ["bundle", "inspect", str(file), "--json"]).stdout)
    assert shown["effect"] == ['step 1: book{"seat":4}: write, done']
    done = runner.invoke(app, ["replay", str(file), "--agent", "examples.bundle_replay:book_seat"])
    assert (done.exit_code, done.stdout) == (0, f"{file}: equal\n")
