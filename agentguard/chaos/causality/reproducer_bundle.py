"""Bundles of reproducers: an agent whose only tool runs a workload with faults."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from agentguard.bundles import CallBinding, record_run
from agentguard.chaos.causality.cycle_confirmation import Reproducer
from agentguard.chaos.causality.fault_probe import FaultInjection, FaultKind, SiteFault
from agentguard.chaos.causality.workload_run import run_workload
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.plugins import import_function
from agentguard.trajectory.model import Trajectory

_TASK = "Run a workload with the faults of a causal cycle."

_guard = Guard()


@_guard.tool(effect="read")
def run_workload_with_faults(workload: str, seed: int, injections: list[dict[str, Any]]) -> str:
    """Run a workload, and count its successful work in each quarter of the run.

    Args:
        workload: MODULE:FUNCTION of the workload.
        seed: seed of the run.
        injections: site, kind, start_s, end_s and delay_s of each fault.
    """
    function = import_function(workload)
    profile = run_workload(workload, function, seed)
    run = run_workload(workload, function, seed, [_decode_injection(one) for one in injections])
    quarter_s = profile.duration_s / 4
    bounds = [(part * quarter_s, (part + 1) * quarter_s) for part in range(4)]
    counts = {
        "without_faults": [profile.count_completions(*one) for one in bounds],
        "with_faults": [run.count_completions(*one) for one in bounds],
    }
    return orjson.dumps(counts).decode()


def write_reproducer_bundle(reproducer: Reproducer, path: Path) -> None:
    """Record a reproducer into a bundle.

    A sealed replay compares the recorded counts; a replay with ``--mode decisions`` runs the workload again.
    The agent of both is `agentguard.chaos.causality:run_reproducer`.
    """
    arguments = {
        "workload": reproducer.workload,
        "seed": reproducer.seed,
        "injections": [_encode_injection(one) for one in reproducer.injections],
    }

    def choose_call(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        del tools
        if messages[-1]["role"] == "tool":
            return "The workload has run."
        function = {"name": run_workload_with_faults.__name__, "arguments": orjson.dumps(arguments).decode()}
        return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}

    record_run(lambda binding: _run_agent(binding, choose_call), str(path), guard=_guard)


def run_reproducer(binding: CallBinding) -> Trajectory:
    """Run the agent of a reproducer; its model exists only in the bundle."""
    return _run_agent(binding, _reject_live_call)


def _run_agent(binding: CallBinding, model: Any) -> Trajectory:
    bound, tools = binding.bind_model(model), binding.bind_tools([run_workload_with_faults])
    with _guard.run(_TASK, tools=tools, id=binding.run_id) as run:
        while not run.done:
            run.tools(run.model(bound))
    trajectory: Trajectory = run.trajectory
    return trajectory


def _reject_live_call(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    del messages, tools
    raise ConfigError("the reproducer has no model: use the mode sealed or decisions")


def _encode_injection(injection: FaultInjection) -> dict[str, Any]:
    data = asdict(injection)
    fault = data.pop("fault")
    # A number of iterations has no meaning with a time window, and infinity is not JSON.
    return {name: data[name] for name in ("start_s", "end_s", "delay_s")} | {
        "site": fault["site"],
        "kind": fault["kind"].value,
    }


def _decode_injection(data: dict[str, Any]) -> FaultInjection:
    fault = SiteFault(data["site"], FaultKind(data["kind"]))
    return FaultInjection(
        fault=fault, count=None, start_s=data["start_s"], end_s=data["end_s"], delay_s=data["delay_s"]
    )
