"""Campaigns on agents of frameworks: faults at their HTTP clients, coroutine agents and virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from agentguard.bundles import RunBinding
from agentguard.chaos import Campaign, CampaignReport, CampaignRunner, ExperimentResult
from agentguard.chaos.injection import FaultPlacement, InjectionBinding
from agentguard.trajectory.model import Source, Step, Trajectory
from examples import bundle_frameworks, chaos_langgraph

API_FAULTS = ["http_429", "http_529", "connection_reset", "timeout", "slow"]


def run_campaign(
    agent: Callable[..., Any], *, site: str = "model", **faults: list[str]
) -> dict[str, ExperimentResult]:
    """Return the results of the first call of a site by fault."""
    campaign = Campaign.model_validate(
        {
            "version": 1,
            "target": {"agent": "tests:agent", "effects": ["book"]},
            "faults": {"tool": [], "model": []} | faults,
            "schedule": {"max_calls_per_site": 1},
        }
    )
    results = CampaignRunner(campaign, agent=agent).run().results
    return {one.fault: one for one in results if one.site == site}


@pytest.mark.parametrize("name", bundle_frameworks.AGENTS)
def test_framework_with_fault_of_the_endpoint_survives_in_virtual_time(name: str) -> None:
    begin = time.perf_counter()
    results = run_campaign(bundle_frameworks.AGENTS[name], model=API_FAULTS)
    assert {fault: one.outcome.value for fault, one in results.items()} == dict.fromkeys(
        API_FAULTS, "survived"
    )
    assert all(one.seconds > 0 for one in results.values())  # the client waits before its next attempt
    assert results["slow"].seconds == 60.0
    assert time.perf_counter() - begin < 60


@pytest.mark.parametrize(("calls", "outcome"), [(2, "survived"), (3, "failed")])
def test_outage_that_is_longer_than_the_retries_of_the_client_fails(calls: int, outcome: str) -> None:
    campaign = Campaign.model_validate(
        {
            "version": 1,
            "target": {"agent": "tests:agent", "effects": ["book"]},
            "faults": {"tool": [], "model": ["http_529"], "consecutive_calls": calls},
            "schedule": {"max_calls_per_site": 1},
            "steady_state": {"max_extra_calls": 2},
        }
    )
    (result,) = CampaignRunner(campaign, agent=bundle_frameworks.run_openai).run().results
    assert result.outcome == outcome
    assert result.recovered_after == (calls if outcome == "survived" else None)


@pytest.mark.parametrize("stream", [False, True])
def test_cut_stream_of_the_endpoint_has_no_end(stream: bool) -> None:
    binding = InjectionBinding(FaultPlacement(site="model", fault="stream_cut", calls=(0,)))
    body = {"messages": [{"role": "user", "content": "Book seat 4."}], "stream": stream}
    with httpx2.Client(transport=binding.bind_transport(bundle_frameworks.SERVER)) as client:
        if stream:
            text = client.post("https://model.example/v1/chat/completions", json=body).text
            assert "book" in text
            assert "[DONE]" not in text
        else:
            with pytest.raises(httpx2.RemoteProtocolError, match="before the end of the answer"):
                client.post("https://model.example/v1/chat/completions", json=body)


@pytest.mark.parametrize("fault", ["refusal", "empty", "bad_tool_name", "bad_arguments", "bad_body"])
def test_framework_with_fault_in_the_answer_has_no_false_claim(fault: str) -> None:
    result = run_campaign(bundle_frameworks.run_langchain, model=[fault])[fault]
    assert (result.extra_effects, result.is_false_claim) == (0, False)
    assert result.outcome in ("failed", "survived")


def test_repeated_answer_of_the_endpoint_leads_to_more_calls() -> None:
    campaign = Campaign.model_validate(
        {
            "version": 1,
            "target": {"agent": "tests:agent", "effects": ["book"]},
            "faults": {"tool": [], "model": ["repeats_itself"]},
        }
    )
    results = CampaignRunner(campaign, agent=bundle_frameworks.run_openai).run().results
    first, second = sorted(results, key=lambda one: one.call)
    assert first.outcome == "not injected"
    assert second.extra_calls > 0


@pytest.mark.chaos(
    effects=["book_flight", "send_receipt"], tool=["after_commit_crash", "ok_with_error"], model=["http_429"]
)
def test_langgraph_agent_with_three_tools_has_no_unsafe_run(chaos: Callable[..., CampaignReport]) -> None:
    report = chaos(chaos_langgraph.book_trip)
    assert {cell.site for cell in report.cells if cell.outcomes["survived"]} >= {"model", "tool:book_flight"}
    assert next(cell for cell in report.cells if cell.fault == "ok_with_error").extra_tokens > 0


async def book_with_deadline(binding: RunBinding) -> Trajectory:
    """Search and book with coroutine tools; each attempt has 30 seconds."""

    async def search(row: int) -> str:
        """Find a seat."""
        await asyncio.sleep(5)
        return f"seat {4 * row}"

    async def book(seat: str) -> str:
        """Book a seat."""
        return f"{seat} is booked"

    find, reserve = binding.bind_tools([search, book])
    seat, text = "", "no seat"
    for _ in range(2):
        try:
            seat = await asyncio.wait_for(find(row=1), 30)
            break
        except TimeoutError:
            await asyncio.to_thread(time.sleep, 1)
    if seat:
        text = await reserve(seat=seat)
    step = Step(index=0, source=Source.AGENT, agent="agent", content=text)
    return Trajectory(id=binding.run_id, format="event_log", task="Book.", steps=(step,))


def test_coroutine_agent_with_slow_tool_meets_its_deadline_in_virtual_time() -> None:
    begin = time.perf_counter()
    results = run_campaign(book_with_deadline, site="tool:search", tool=["slow", "timeout"])
    assert {fault: (one.outcome.value, one.seconds) for fault, one in results.items()} == {
        "slow": ("survived", 36.0),  # 30 s to the deadline, 1 s in a thread, 5 s
        "timeout": ("survived", 6.0),
    }
    assert results["slow"].events["tool:search"] == ["CancelledError", "repeated"]
    assert time.perf_counter() - begin < 20


def test_endpoint_that_is_no_guarded_api_has_no_faults() -> None:
    def embed(binding: RunBinding) -> Trajectory:
        server = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"data": []}))
        with httpx2.Client(transport=binding.bind_transport(server)) as client:
            text = client.post("https://model.example/v1/embeddings", json={"input": "x"}).text
        step = Step(index=0, source=Source.AGENT, agent="agent", content=text)
        return Trajectory(id=binding.run_id, format="event_log", task="Embed.", steps=(step,))

    assert run_campaign(embed, model=["http_429"]) == {}
