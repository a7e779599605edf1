"""Campaigns on recorded runs: the bundle has the answers, and nothing live is called."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from agentguard import Guard
from agentguard.bundles import CallBinding, record_run
from agentguard.chaos import Campaign, CampaignRunner, ExperimentOutcome, ExperimentResult
from agentguard.errors import BundleError, ConfigError
from agentguard.trajectory.model import Trajectory

guard = Guard()
live_calls: list[str] = []


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    live_calls.append("book")
    return f"seat {seat} is yours"


def call_llm(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    """Book, then answer."""
    del tools
    live_calls.append("model")
    if messages[-1]["role"] == "tool":
        return "Seat 4 is booked."
    function = {"name": "book", "arguments": json.dumps({"seat": 4})}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def book_seat(binding: CallBinding) -> Trajectory:
    """Run the agent; repeat a model call once after a rejection."""
    model, tools = binding.bind_model(call_llm), binding.bind_tools([book])

    def ask(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        try:
            return model(messages=messages, tools=tools)
        except Exception:
            return model(messages=messages, tools=tools)

    with guard.run("Book seat 4.", tools=tools, id=binding.run_id) as run:
        while not run.done:
            run.tools(run.model(ask))
    return run.trajectory


def open_connection(binding: CallBinding) -> Trajectory:
    """Connect to a host without the binding."""
    socket.create_connection(("127.0.0.1", 9))
    return book_seat(binding)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "booking.agb"
    record_run(book_seat, path, guard=guard)
    return path


def run_campaign(
    recording: Path, agent: str = "book_seat", *, calls: int = 1, **faults: Any
) -> dict[str, ExperimentResult]:
    """Return the result of the last call of each fault that is injected."""
    target = {"agent": f"{__name__}:{agent}", "bundle": str(recording)}
    campaign = Campaign.model_validate(
        {
            "version": 1,
            "target": target,
            "faults": {"tool": [], "model": []} | faults,
            "schedule": {"max_calls_per_site": calls},
        }
    )
    results = CampaignRunner(campaign).run().results
    return {one.fault: one for one in results if one.outcome is not ExperimentOutcome.NOT_INJECTED}


def test_recorded_run_with_faults_calls_nothing_live(recording: Path) -> None:
    live_calls.clear()
    results = run_campaign(recording, tool=["slow", "empty"], model=["http_429", "connection_reset"])
    assert {fault: one.outcome.value for fault, one in results.items()} == {
        "slow": "survived",
        "empty": "survived",
        "http_429": "survived",
        "connection_reset": "survived",
    }
    assert live_calls == []
    assert results["slow"].seconds == 60.0


def test_run_that_asks_more_than_the_recording_is_undecided(recording: Path) -> None:
    result = run_campaign(recording, calls=2, model=["repeats_itself"])["repeats_itself"]
    assert (result.outcome, result.call) == ("undecided", 1)
    assert result.error == "ReplayMismatch: model: the agent makes more model calls than the bundle has"


def test_recorded_claim_without_its_effect_is_undecided(recording: Path) -> None:
    result = run_campaign(recording, model=["bad_tool_name"])["bad_tool_name"]
    assert (result.outcome, result.missing_effects, result.is_false_claim) == ("undecided", 1, False)


def test_effect_class_of_the_recording_counts_the_effects(recording: Path) -> None:
    result = run_campaign(recording, tool=["after_commit_crash"])["after_commit_crash"]
    assert result.events["tool:book"] == ["TimeoutError"]
    assert (result.extra_effects, result.missing_effects) == (0, 0)


def test_connection_without_the_binding_violates_the_steady_state(recording: Path) -> None:
    with pytest.raises(ConfigError, match="a sealed replay opens no connection"):
        run_campaign(recording, "open_connection", tool=["error"])


def test_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no\.agb"):
        run_campaign(tmp_path / "no.agb", tool=["error"])


def test_bundle_without_agent_is_refused() -> None:
    with pytest.raises(ValueError, match="bundle needs agent"):
        Campaign.model_validate({"version": 1, "target": {"command": ["a"], "bundle": "b.agb"}})
