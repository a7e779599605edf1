"""One measurement of one gateway: the load, its figures, and the gateway's cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.gateways import KEY, Gateway, wrk
from benchmarks.gateway.processes import NoPeer, Started, pinned

HERE = Path(__file__).resolve().parent
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
_PERCENTILE = re.compile(r"^\s+(50|99)%\s+([0-9.]+)(us|ms|s|m)", re.MULTILINE)
_LOST = re.compile(r"^agentguard_capture_dropped(?:_total)?(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE)
_BAD = re.compile(
    r"(?:Non-2xx or 3xx responses: (\d+)|Socket errors: connect (\d+), read (\d+), write (\d+))"
)


@dataclass(frozen=True)
class Target:
    """A running gateway, or the backend itself.

    Attributes:
        name: name in the table.
        url: URL of the requests.
        backend: port of the endpoint behind it.
        headers: headers of a request.
        started: its processes; None for the backend itself, whose cost is not measured.
    """

    name: str
    url: str
    backend: int
    headers: Mapping[str, str]
    started: Started | None = None

    @classmethod
    def of(cls, gateway: Gateway, port: int, backend: int, started: Started) -> Target:
        return cls(gateway.name, gateway.url(port), backend, gateway.headers(backend), started)


def requests(
    target: Target, *, connections: int, seconds: float, tools: bool, seed: str, core: int | None
) -> dict[str, Any]:
    """Measure whole answers with wrk: req_s, p50_ms, p99_ms, cpu_us and helper_us per request, errors."""
    more = [f"{name}={value}" for name, value in target.headers.items()]
    command = [
        wrk(),
        "-t1",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "--latency",
        "--timeout",
        "10s",
    ]
    command += [
        "-s",
        str(HERE / "load.lua"),
        target.url,
        "--",
        seed,
        KEY,
        "tools" if tools else "plain",
        *more,
    ]
    before = _cpu(target)
    said = subprocess.run(pinned(core, command), capture_output=True, text=True, timeout=seconds + 60).stdout
    after = _cpu(target, settled=True)
    done = re.search(r"(\d+) requests in ([0-9.]+)(us|ms|s|m)", said)
    if done is None or not int(done[1]):
        raise NoPeer(f"{target.name} answered no request in {seconds:g} s")
    count, took = int(done[1]), float(done[2]) * _UNITS[done[3]] / 1000
    percentiles = {
        f"p{name}_ms": float(value) * _UNITS[unit] for name, value, unit in _PERCENTILE.findall(said)
    }
    errors = sum(int(value) for found in _BAD.findall(said) for value in found if value)
    return {"req_s": count / took, **percentiles, **_costs(before, after, count), "errors": errors}


def streams(
    target: Target,
    *,
    connections: int,
    seconds: float,
    tools: bool,
    seed: str,
    core: int | None,
    long: bool = False,
) -> dict[str, Any]:
    """Measure streams: first_ms, whole_ms, events_s, cpu_us and helper_us per stream, errors."""
    given = {"connections": connections, "seconds": seconds, "tools": tools, "long": long, "seed": seed}
    return _run_load("streams.py", "streams", target, given, core)


def runs(
    target: Target,
    *,
    connections: int,
    seconds: float,
    seed: str,
    core: int | None,
    turns: int,
    result_bytes: int,
    error_share: float = 0.0,
) -> dict[str, Any]:
    """Measure runs of agents: req_s, p50_ms, body_kb, cpu_us and helper_us per request, errors."""
    given = {"connections": connections, "seconds": seconds, "seed": seed, "turns": turns}
    given |= {"result_bytes": result_bytes, "error_share": error_share}
    return _run_load("runs.py", "asked", target, given, core)


def requests_beside_fleet(
    target: Target, *, idle: int, connections: int, seconds: float, seed: str, core: int | None
) -> dict[str, Any]:
    """Measure whole answers while a fleet of idle connections is open: as `requests`, idle and fleet_mb."""
    given = {"url": target.url, "key": KEY, "headers": dict(target.headers), "connections": idle}
    command = pinned(core, [sys.executable, str(HERE / "fleet.py"), json.dumps(given)])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as fleet:
        assert fleet.stdin is not None
        assert fleet.stdout is not None
        line = fleet.stdout.readline()  # empty after a timeout of the fleet
        if not line:
            raise NoPeer(f"{target.name} did not accept {idle} connections")
        row = requests(target, connections=connections, seconds=seconds, tools=False, seed=seed, core=core)
        memory_mb = 0.0 if target.started is None else target.started.memory_mb()[0]
        fleet.stdin.close()
    return {**row, **json.loads(line), "fleet_mb": memory_mb}


def _run_load(
    script: str, count: str, target: Target, given: dict[str, Any], core: int | None
) -> dict[str, Any]:
    """Run a load script; ``count`` is the field with the number of requests that the costs are divided by."""
    given = {"url": target.url, "key": KEY, "headers": dict(target.headers), **given}
    command = [sys.executable, str(HERE / script), json.dumps(given)]
    before = _cpu(target)
    ran = subprocess.run(pinned(core, command), capture_output=True, text=True, timeout=given["seconds"] + 60)
    after = _cpu(target, settled=True)
    if ran.returncode:
        raise NoPeer(f"{target.name}: {ran.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(ran.stdout)
    return {**found, **_costs(before, after, max(1, found[count]))}


def lost(target: Target) -> float:
    """Return the requests that our capture has lost so far, from its metrics; 0 for other gateways."""
    url = target.url.removesuffix("/v1/chat/completions") + "/metrics"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return 0.0
    return sum(float(value) for value in _LOST.findall(text))


def _cpu(target: Target, *, settled: bool = False) -> tuple[float, float]:
    if target.started is None:
        return 0.0, 0.0
    return target.started.settled() if settled else target.started.cpu_s()


def _costs(before: tuple[float, float], after: tuple[float, float], count: int) -> dict[str, float]:
    worker, helpers = ((now - then) / count * 1e6 for now, then in zip(after, before, strict=True))
    return {"cpu_us": worker, "helper_us": helpers, "asked": count}
