"""Model server of a benchmark: a URL from the command line, or the local vLLM."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions

DEADLINE_S = 600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the server and the output format."""
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    parser.add_argument("--api-key-env", default="AGENTGUARD_JUDGE_KEY")
    parser.add_argument("--json", action="store_true")


def key(args: argparse.Namespace) -> str | None:
    """Return the server's API key from the environment."""
    return os.environ.get(args.api_key_env)


def client(args: argparse.Namespace, url: str) -> JudgeEndpoint:
    """Return an HTTP client for the server; the caller closes it."""
    options = EndpointOptions(deadline_s=DEADLINE_S)
    return JudgeEndpoint(url, model=args.model, api_key=key(args), options=options)


@contextmanager
def served(base_url: str | None, context: int = 4_096) -> Iterator[str]:
    """Yield the given endpoint, or start the local vLLM and stop it at the end."""
    if base_url:
        yield base_url
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.vllm_server import VllmServer, tiny
    from tests.vllm_setup import COMMAND, missing

    if lacking := missing():
        raise SystemExit(f"{lacking}: run {COMMAND}, or name an endpoint with --base-url")
    server = VllmServer(tiny(context))
    try:
        server.ensure()
        yield server.url
    finally:
        server.stop()


def machine() -> str:
    """Return processor, cores and GPUs of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    gpus = "no GPU found"
    if (program := shutil.which("nvidia-smi")) is not None:
        asked = [program, "--query-gpu=name", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        gpus = ", ".join(said.strip().splitlines()) or gpus
    return f"{name}, {os.cpu_count()} cores, {gpus}"


def shorten_model_name(version: str) -> str:
    """Return the model name that an endpoint reports, without the folders of the checkpoint."""
    return re.sub(r"\(/.*/([^/]+)\)", r"(\1)", version)


def say(text: str) -> None:
    """Print progress beside the output."""
    print(text, file=sys.stderr, flush=True)
