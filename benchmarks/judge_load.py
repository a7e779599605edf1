"""Load on a served judge: 200 clients, a queue of 64, and the end of each request.

Run: .venv/bin/python benchmarks/judge_load.py             # the local vLLM of `make vllm` (about 6 GB)
     .venv/bin/python benchmarks/judge_load.py 48gb        # on a GPU: a preset or model

The benchmark starts ``agentguard judge serve`` with its default checks. Each client asks again after its
answer, about another run each time, and one second after a refusal. The exit status is 1 if the server was
restarted, or if a request ended otherwise than with an answer or a refusal.

Arguments after ``--`` are those of ``judge serve``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from model_server import machine, say

from tests.judge_load import run_load
from tests.judge_process import Serving, serving
from tests.vllm_server import CPU_ENVIRONMENT, CPU_FLAGS
from tests.vllm_setup import COMMAND, PYTHON, WEIGHTS, missing


@contextmanager
def open_server(model: str | None, *flags: str) -> Iterator[Serving]:
    """Serve a preset or model with the installed vLLM; without one, the tiny model on the CPU."""
    if model is not None:
        with serving(model, None, *flags) as server:
            yield server
        return
    if lacking := missing():
        raise SystemExit(f"{lacking}: run {COMMAND}, or name a preset or model")
    local = ("--max-model-len", "4096", "--offline", *flags, "--", *CPU_FLAGS)
    with serving(str(WEIGHTS), PYTHON, *local, environment=CPU_ENVIRONMENT) as server:
        yield server


def main() -> None:
    given, _, more = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="preset or model; by default the local vLLM's")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--deadline", type=float, default=120, help="of one request, in seconds")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(given.split())
    with tempfile.TemporaryDirectory() as folder:
        log = ("--log", str(Path(folder) / "server.log"))
        with open_server(args.model, *log, *more.split()) as server:
            ready = server.until("ready")
            say(f"{ready['model']} is ready; {args.clients} clients ask for {args.minutes:g} minutes")
            report = run_load(
                server, clients=args.clients, seconds=args.minutes * 60, deadline_s=args.deadline
            )
    found = {"machine": machine(), "clients": args.clients, "minutes": args.minutes, **asdict(report)}
    print(
        json.dumps(found) if args.json else "\n".join(f"{name:10} {value}" for name, value in found.items())
    )
    sys.exit(1 if report.lost or report.restarts else 0)


if __name__ == "__main__":
    main()
