"""Campaigns on programs: exit status, traffic of each API, and errors of the target."""

from __future__ import annotations

import sys
from typing import Any

import httpx2
import pytest

from agentguard._sync_async import run_sync
from agentguard.chaos import Campaign, CampaignRunner, ExperimentResult
from agentguard.chaos.injection import FaultPlacement, InjectionBinding
from agentguard.chaos.program_agent import ProgramTraffic, serve_traffic
from agentguard.errors import ConfigError

REFUND = {"key": "7", "amount": 12}
ARGUMENTS = '{"key": "7", "amount": 12}'

REQUESTS: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "messages": [
            {"role": "user", "content": "Refund order 7."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "refund", "arguments": ARGUMENTS},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "12 are refunded"},
        ]
    },
    "/responses": {
        "input": [
            {"role": "user", "content": "Refund order 7."},
            {"type": "function_call", "call_id": "c1", "name": "refund", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c1", "output": "12 are refunded"},
        ]
    },
    "/messages": {
        "messages": [
            {"role": "user", "content": "Refund order 7."},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "refund", "input": REFUND}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "12 are refunded"}],
            },
        ]
    },
}


def build_campaign(**sections: Any) -> Campaign:
    target = {"command": [sys.executable, "examples/chaos_program.py"], "effects": ["refund"]}
    return Campaign.model_validate({"version": 1, "target": target | sections.pop("target", {})} | sections)


def run_by_fault(campaign: Campaign) -> dict[str, ExperimentResult]:
    return {one.fault: one for one in CampaignRunner(campaign).run().results}


class TestProgram:
    def test_program_without_code_survives_faults_that_it_retries(self) -> None:
        faults = {"tool": ["empty"], "model": ["http_429", "connection_reset", "bad_arguments"]}
        results = run_by_fault(build_campaign(faults=faults, schedule={"max_calls_per_site": 1}))
        assert {fault: one.outcome.value for fault, one in results.items()} == {
            "empty": "survived",
            "http_429": "survived",
            "connection_reset": "survived",
            "bad_arguments": "failed",
        }
        assert results["http_429"].events == {"model": ["ok", "repeated", "ok"], "tool:refund": ["ok"]}
        assert results["bad_arguments"].error.startswith("ProgramFailed: exit status 1: json.decoder.")

    def test_program_that_fails_without_a_fault_violates_the_steady_state(self) -> None:
        with pytest.raises(ConfigError, match=r"steady_state: .*exit status 3: no text on stderr"):
            CampaignRunner(build_campaign(target={"command": [sys.executable, "-c", "raise SystemExit(3)"]}))

    def test_program_that_does_not_end_is_stopped(self) -> None:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        with pytest.raises(ConfigError, match=r"did not end within 0\.2 s"):
            CampaignRunner(build_campaign(target={"command": command, "timeout_s": 0.2}))

    def test_missing_program_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"target\.command: no-such-program cannot be started"):
            CampaignRunner(build_campaign(target={"command": ["no-such-program"]}))

    def test_program_without_requests_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="sent no answered request"):
            CampaignRunner(build_campaign(target={"command": [sys.executable, "-c", ""]}))

    def test_used_port_is_named(self) -> None:
        traffic = ProgramTraffic(InjectionBinding())
        with (
            serve_traffic(traffic, "http://127.0.0.1:9") as url,
            pytest.raises(ConfigError, match=r"target\.port: \d+ cannot be used"),
            serve_traffic(traffic, "http://127.0.0.1:9", port=int(url.rpartition(":")[2])),
        ):
            pass

    @pytest.mark.parametrize("target", [{}, {"agent": "a:b", "command": ["c"]}])
    def test_target_needs_agent_or_command(self, target: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="needs either agent or command"):
            Campaign.model_validate({"version": 1, "target": target})


def exchange(traffic: ProgramTraffic, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the request that reaches the model."""
    sent: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        sent.append(request["body"])
        return {"status": 200, "headers": {}, "body": {}}

    run_sync(traffic.run_exchange(f"POST {path}", {"body": body}), answer)
    return sent[0]


@pytest.mark.parametrize("path", REQUESTS)
class TestTraffic:
    def test_result_with_a_fault_is_the_same_in_later_requests(self, path: str) -> None:
        placement = FaultPlacement(site="tool:refund", fault="after_commit_crash", calls=(0,))
        binding = InjectionBinding(placement, effects=lambda _: True)
        traffic, body = ProgramTraffic(binding), REQUESTS[path]
        first, second = exchange(traffic, path, body), exchange(traffic, path, body)
        assert first == second
        assert "Error: no answer within 30 s" in str(first)
        assert "12 are refunded" not in str(first)
        assert binding.effects.total() == 1
        assert binding.is_injected

    def test_request_without_a_fault_is_forwarded_unchanged(self, path: str) -> None:
        assert exchange(ProgramTraffic(InjectionBinding()), path, REQUESTS[path]) == REQUESTS[path]

    def test_run_has_the_steps_of_the_conversation(self, path: str) -> None:
        traffic = ProgramTraffic(InjectionBinding())
        exchange(traffic, path, REQUESTS[path])
        run = traffic.build_trajectory("r1")
        assert (run.id, run.task) == ("r1", "Refund order 7.")
        assert [call.name for step in run.steps for call in step.tool_calls] == ["refund"]


def test_body_that_is_not_text_gets_an_error_with_its_reason() -> None:
    with serve_traffic(ProgramTraffic(InjectionBinding()), "http://127.0.0.1:9") as url:
        response = httpx2.post(f"{url}/v1/audio/transcriptions", content=b"\xff\xfe")
    assert response.status_code == 502
    assert "an HTTP body that is not UTF-8 text cannot be recorded" in response.text


def test_streamed_answer_with_a_fault_is_a_stream_of_events() -> None:
    binding = InjectionBinding(FaultPlacement(site="model", fault="refusal", calls=(0,)))
    call = ProgramTraffic(binding).run_exchange(
        "POST /chat/completions", {"body": REQUESTS["/chat/completions"] | {"stream": True}}
    )
    response = run_sync(call, lambda _: pytest.fail("a refusal needs no request"))
    assert response["headers"] == {"content-type": "text/event-stream"}
    assert "I'm sorry" in response["body"]
    assert response["body"].endswith("data: [DONE]\n\n")
