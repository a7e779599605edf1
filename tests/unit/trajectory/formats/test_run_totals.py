from __future__ import annotations

from typing import Any

import pytest

from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Usage

SWE_AGENT = {
    "trajectory": [
        {"action": "ls", "observation": "hives.csv", "thought": "I look."},
        {"action": "cat hives.csv", "observation": "1", "thought": "I read."},
    ],
    "history": [],
    "info": {
        "model_stats": {"instance_cost": 0.02, "total_cost": 9.5, "tokens_sent": 70, "tokens_received": 8}
    },
}
MINI = {
    "info": {"model_stats": {"instance_cost": 0.03, "api_calls": 1}, "exit_status": "Submitted"},
    "trajectory_format": "mini-swe-agent-1",
    "messages": [
        {"role": "system", "content": "Use bash."},
        {"role": "user", "content": "Count the hives."},
        {"role": "assistant", "content": "I look.\n\n```bash\nls\n```"},
    ],
}
OPENHANDS = {
    "instance_id": "hive-1",
    "metrics": {
        "accumulated_cost": 0.04,
        "accumulated_token_usage": {"prompt_tokens": 60, "completion_tokens": 7, "cache_read_tokens": 20},
    },
    "history": [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "Count the hives."}},
        {"id": 1, "source": "agent", "action": "message", "args": {"content": "There are 2."}},
    ],
}
ATIF = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s",
    "agent": {"name": "a", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Count the hives."},
        {"step_id": 2, "source": "agent", "message": "There are 2."},
    ],
    "final_metrics": {"total_prompt_tokens": 50, "total_completion_tokens": 6, "total_cost_usd": 0.05},
}
AUTOGEN = {
    "chat_history": [
        {"role": "assistant", "name": "owner", "content": "Count the hives."},
        {"role": "user", "name": "counter", "content": "There are 2."},
    ],
    "cost": {
        "usage_including_cached_inference": {
            "total_cost": 0.06,
            "model-a": {"cost": 0.02, "prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
            "model-b": {"cost": 0.04, "prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22},
        }
    },
}
INSPECT = {
    "version": 2,
    "status": "success",
    "eval": {"task": "hives", "model": "vendor/m"},
    "samples": [
        {
            "id": 1,
            "epoch": 1,
            "input": "Count the hives.",
            "messages": [
                {"role": "user", "content": "Count the hives."},
                {"role": "assistant", "content": "There are 2."},
            ],
            "model_usage": {
                "vendor/m": {"input_tokens": 40, "output_tokens": 5, "total_tokens": 45},
                "vendor/grader": {"input_tokens": 900, "output_tokens": 90, "total_tokens": 990},
            },
        }
    ],
}
LANGFUSE = {
    "id": "t1",
    "timestamp": "2026-01-05T09:00:00.000Z",
    "public": False,
    "input": "Count the hives.",
    "output": "There are 2.",
    "totalCost": 0.07,
    "observations": [
        {
            "id": "o1",
            "traceId": "t1",
            "type": "GENERATION",
            "startTime": "2026-01-05T09:00:01.000Z",
            "input": [{"role": "user", "content": "Count the hives."}],
            "output": {"role": "assistant", "content": "There are 2."},
        }
    ],
}


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        (SWE_AGENT, Usage(prompt_tokens=70, completion_tokens=8, cost_usd=0.02)),
        (MINI, Usage(cost_usd=0.03)),
        (OPENHANDS, Usage(prompt_tokens=60, completion_tokens=7, cached_tokens=20, cost_usd=0.04)),
        (ATIF, Usage(prompt_tokens=50, completion_tokens=6, cost_usd=0.05)),
        (AUTOGEN, Usage(prompt_tokens=30, completion_tokens=3, cost_usd=0.06)),
        (INSPECT, Usage(prompt_tokens=40, completion_tokens=5)),
        (LANGFUSE, Usage(cost_usd=0.07)),
    ],
    ids=["swe_agent", "text_actions", "openhands", "atif", "autogen", "inspect_log", "langfuse"],
)
def test_totals_without_usage_of_turns_are_the_usage_of_the_last_turn(
    value: dict[str, Any], usage: Usage
) -> None:
    *earlier, last = load_trajectory(value).steps
    assert last.usage == usage
    assert {step.usage for step in earlier} == {None}


def test_totals_do_not_add_to_the_usage_of_turns() -> None:
    steps = [dict(step) for step in ATIF["steps"]]  # type: ignore[attr-defined]
    steps[1]["metrics"] = {"prompt_tokens": 49}
    (_, last) = load_trajectory({**ATIF, "steps": steps}).steps
    assert last.usage == Usage(prompt_tokens=49, completion_tokens=6, cost_usd=0.05)


def test_totals_of_zero_are_not_recorded() -> None:
    stats = {"instance_cost": 0, "total_cost": 0, "tokens_sent": 0, "tokens_received": 0, "api_calls": 0}
    run = load_trajectory({**SWE_AGENT, "info": {"model_stats": stats}})
    assert {step.usage for step in run.steps} == {None}
