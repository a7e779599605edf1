"""Cost of gateways: requests per second and core, latency and streams, measured on one machine.

Run: python -m benchmarks.gateway [--seconds 5] [--rounds 3] [--only NAME ...] [--minutes M] [--json]

The first run installs the peers (.venv-bench-*, .cache/bench-portkey) and, as root on Debian, wrk. Each
gateway has one worker on one core; the backend and the load generator run on another core. See README.md in
this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gateway.gateways import GATEWAYS, Gateway
from benchmarks.gateway.measurement import (
    HERE,
    Target,
    lost,
    requests,
    requests_beside_fleet,
    runs,
    streams,
)
from benchmarks.gateway.processes import NoPeer, free_port, pinned
from benchmarks.gateway.report import OURS, report, table

CONNECTIONS = (1, 16, 64)
Measure = Callable[..., dict[str, Any]]
"""Function that measures one gateway: takes the target, seconds, seed and core."""

Found = dict[str, dict[str, list[dict[str, Any]]]]
"""Results of each round, by gateway and scenario."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="each measures every gateway once, in turn")
    parser.add_argument("--only", nargs="*", default=None, help="names of gateways; all if absent")
    parser.add_argument("--minutes", type=float, default=0.0, help="of load under which memory is watched")
    parser.add_argument("--connections", type=int, nargs="*", default=list(CONNECTIONS))
    parser.add_argument(
        "--scenarios",
        choices=("base", "all"),
        default="all",
        help="base: without runs of agents and long streams",
    )
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    return parser.parse_args()


class Bench:
    """A backend, the gateways in front of it, and their cores."""

    def __init__(self, given: argparse.Namespace, stack: ExitStack) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.given = given
        self.core, self.load_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentguard-gateway-")))
        self.missing: dict[str, str] = {}
        self.cold: dict[str, dict[str, float]] = {}
        self.found: Found = defaultdict(lambda: defaultdict(list))
        self._stack = stack
        command = [sys.executable, str(HERE / "backend.py"), "0"]
        backend = subprocess.Popen(pinned(self.load_core, command), stdout=subprocess.PIPE, text=True)
        stack.callback(_end, backend)
        assert backend.stdout is not None
        self.backend = int(backend.stdout.readline())

    def start(self) -> list[Target]:
        """Start all available gateways; record the reason for each missing one."""
        url = f"http://127.0.0.1:{self.backend}/v1/chat/completions"
        targets = [Target("backend", url, self.backend, {})]
        for gateway in GATEWAYS:
            if self.given.only is None or gateway.name in self.given.only:
                try:
                    targets.append(self._start(gateway))
                except NoPeer as error:
                    self.missing[gateway.name] = str(error)
                    print(f"{gateway.name}: not measured: {error}", file=sys.stderr)
        return targets

    def _start(self, gateway: Gateway) -> Target:
        port, folder = free_port(), self.folder / gateway.name.replace(" ", "-").replace(",", "")
        started = gateway.started(port, self.backend, folder, core=self.core)
        self._stack.callback(started.stop)
        self.cold[gateway.name] = {"cold_s": started.cold_s, "idle_mb": sum(started.memory_mb())}
        return Target.of(gateway, port, self.backend, started)

    def round(self, targets: list[Target]) -> None:
        """Run every scenario for every gateway, one gateway after the other."""
        for scenario, measure in self._scenarios():
            for target in targets:
                self._measure(target, scenario, measure)

    def _scenarios(self) -> Iterator[tuple[str, Measure]]:
        """Yield the names of the scenarios and the functions that measure them."""
        for connections in self.given.connections:
            yield f"requests {connections}", partial(requests, connections=connections, tools=False)
        for tools in (False, True):
            kind = "tool streams" if tools else "streams"
            for connections in (1, 16):
                yield f"{kind} {connections}", partial(streams, connections=connections, tools=tools)
        yield "tools 16", partial(requests, connections=16, tools=True)
        if self.given.scenarios == "all":
            yield "runs of 5 turns 4", partial(runs, connections=4, turns=5, result_bytes=4000)
            yield "runs of 50 turns 4", partial(runs, connections=4, turns=50, result_bytes=4000)
            yield "1% errors 16", partial(runs, connections=16, turns=6, result_bytes=400, error_share=0.01)
            yield "long streams 4", partial(streams, connections=4, tools=False, long=True)
            yield "idle fleet 16", partial(requests_beside_fleet, idle=2000, connections=16)

    def _measure(self, target: Target, scenario: str, measure: Measure) -> None:
        before = lost(target) if target.name == OURS else 0.0
        seed = uuid.uuid4().hex[:8]
        try:
            row = measure(target, seconds=self.given.seconds, seed=seed, core=self.load_core)
        except (NoPeer, subprocess.SubprocessError, OSError) as error:
            row = {"failed": str(error)[:500]}
            print(f"{target.name}: {scenario}: {row['failed']}", file=sys.stderr)
        if target.started is not None:
            row["worker_mb"], row["helpers_mb"] = target.started.memory_mb()
        if target.name == OURS:
            row["capture_dropped"] = lost(target) - before
            if "helper_us" in row:  # lost requests cost the helper nothing and must not improve its figure
                asked = row.get("asked", row.get("streams", 1))
                row["helper_us"] *= asked / max(1.0, asked - row["capture_dropped"])
        self.found[target.name][scenario].append(row)

    def watch(self, target: Target, minutes: float) -> list[dict[str, float]]:
        """Sample the memory of one gateway under load, after each part of the load."""
        assert target.started is not None
        samples, until = [], time.monotonic() + minutes * 60
        begun = time.monotonic()
        while time.monotonic() < until:
            seconds = min(15.0, max(1.0, until - time.monotonic()))
            common = {"seconds": seconds / 3, "seed": uuid.uuid4().hex[:8], "core": self.load_core}
            requests(target, connections=16, tools=False, **common)
            requests(target, connections=16, tools=True, **common)
            streams(target, connections=16, tools=True, **common)
            worker, helpers = target.started.memory_mb()
            sample = {"s": time.monotonic() - begun, "worker_mb": worker, "helpers_mb": helpers}
            samples.append({**sample, "pss_mb": target.started.proportional_mb()})
        return samples


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(5)
    if process.stdout is not None:
        process.stdout.close()


def main() -> None:
    given = arguments()
    memory: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        bench = Bench(given, stack)
        targets = bench.start()
        for number in range(given.rounds):
            if not given.json:
                print(f"round {number + 1} of {given.rounds} ...", file=sys.stderr)
            bench.round(targets)
        for target in targets:
            if given.minutes and target.name.startswith("agentguard"):
                memory[target.name] = bench.watch(target, given.minutes)
        told = report(bench.found, cold=bench.cold, missing=bench.missing, memory=memory)
    told["machine"] = {"cores": os.cpu_count(), "seconds": given.seconds, "rounds": given.rounds}
    if given.json:
        print(json.dumps(told, indent=1))
    else:
        print(table(told))


if __name__ == "__main__":
    main()
