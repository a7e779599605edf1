"""The compared gateways: installation, configuration, start and requests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gateway import compiled
from benchmarks.gateway.processes import NoPeer, Started, start, wait_for

ROOT = Path(__file__).resolve().parents[2]
PORTKEY = {"@portkey-ai/gateway": "1.15.2"}
HONO = {"@hono/node-server": "1.13.7"}  # above 1.14 Portkey answers every stream with 500
LITELLM = "litellm[proxy]==1.106.2"
VLLM_ROUTER = "vllm-router"
NATIVE_TARGET = ROOT / ".cache/bench-native"
DEBIAN_CRATES = Path("/usr/share/cargo/registry")  # of the packages librust-*-dev
KEY = "sk-" + hashlib.sha256(b"a key of this benchmark").hexdigest()  # LiteLLM accepts only this form

QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "DO_NOT_TRACK": "1",
    "RUST_LOG": "warn",
}


@dataclass(frozen=True)
class Gateway:
    """One compared gateway.

    Attributes:
        name: name in the table.
        install: installs the gateway; raises NoPeer if that fails.
        command: builds the command from its port, the backend's port and its folder.
        headers: headers of a request.
        env: environment of its process.
    """

    name: str
    install: Callable[[], None]
    command: Callable[[int, int, Path], Sequence[str]]
    headers: Callable[[int], Mapping[str, str]] = lambda _port: {}
    env: Mapping[str, str] = field(default_factory=dict)

    def started(self, port: int, backend: int, folder: Path, *, core: int | None) -> Started:
        """Start the gateway and wait until it answers."""
        self.install()
        folder.mkdir(parents=True, exist_ok=True)
        command = self.command(port, backend, folder)
        made = start(self.name, command, folder / "log.txt", core=core, env={**QUIET, **self.env})
        wait_for(made, self.request(port, backend))
        return made

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}/v1/chat/completions"

    def request(self, port: int, backend: int) -> urllib.request.Request:
        body = json.dumps(
            {"model": "mock", "messages": [{"role": "user", "content": "Are you there?"}]}
        ).encode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {KEY}",
            **self.headers(backend),
        }
        return urllib.request.Request(self.url(port), data=body, headers=headers)


def _nothing() -> None:
    """Install nothing."""


def _pip(folder: str, program: str, *packages: str) -> Callable[[], None]:
    """Create a virtual environment for one peer, if it is missing."""

    def install() -> None:
        home = ROOT / folder
        if (home / "bin" / program).exists():
            return
        print(f"installing {packages[0]} into {folder} ...", file=sys.stderr)
        try:
            venv.create(home, with_pip=True, clear=True)
            _run([str(home / "bin/python"), "-m", "pip", "install", "-q", *packages])
        except (OSError, subprocess.SubprocessError) as error:
            raise NoPeer(f"{packages[0]} could not be installed: {type(error).__name__}") from None

    return install


def _install_portkey() -> None:
    home = ROOT / ".cache/bench-portkey"
    if (home / "node_modules/@portkey-ai/gateway/build/start-server.js").exists():
        return
    if shutil.which("npm") is None:
        raise NoPeer("npm is not installed")
    home.mkdir(parents=True, exist_ok=True)
    (home / "package.json").write_text(
        json.dumps({"private": True, "dependencies": PORTKEY, "overrides": HONO})
    )
    print("installing @portkey-ai/gateway into .cache/bench-portkey ...", file=sys.stderr)
    try:
        _run(["npm", "install", "--no-audit", "--no-fund"], cwd=home)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoPeer(f"@portkey-ai/gateway could not be installed: {type(error).__name__}") from None


def _build_native() -> None:
    if shutil.which("cargo") is None:
        raise NoPeer("cargo is not installed")
    command = ["cargo", "build", "-q", "--release", "--target-dir", str(NATIVE_TARGET)]
    if DEBIAN_CRATES.is_dir():
        command += ["--offline", "--config", 'source.crates-io.replace-with="debian"']
        command += ["--config", f'source.debian.directory="{DEBIAN_CRATES}"']
    try:
        _run(command, cwd=Path(__file__).parent / "native")
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").split("\n")[0]
        raise NoPeer(f"the native prototype could not be built: {said or type(error).__name__}") from None


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    subprocess.run(
        command, check=True, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=900
    )


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _serve(port: int, folder: Path, more: str, backend: int) -> list[str]:
    config = f"""
version: 1
listen: {{host: 127.0.0.1, port: {port}, workers: 1}}
backends:
  replicas: [{{name: a, url: "http://127.0.0.1:{backend}/v1"}}]
logs: {{access_log: false, level: warning}}
{more}"""
    agentguard = ROOT / ".venv/bin/agentguard"
    program = str(agentguard) if agentguard.exists() else "agentguard"
    return [program, "serve", "--config", _written(folder / "proxy.yaml", config)]


def _pure(port: int, backend: int, folder: Path) -> list[str]:
    return _serve(port, folder, "metrics: {enabled: false}\n", backend)


def _pure_compiled(port: int, backend: int, folder: Path) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from agentguard.cli import main; main()",
        *_pure(port, backend, folder)[1:],
    ]


def _everything(port: int, backend: int, folder: Path) -> list[str]:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (folder / "guard.yaml").write_text("version: 1\n")
    more = f"""
keys: [{{name: bench, hash: "sha256:{digest}", tenant: bench, scopes: [call, read]}}]
guard: {{policy: guard.yaml, stream_mode: buffer_tool_calls}}
capture: {{store: "sqlite:///{folder}/runs.db"}}
metrics: {{enabled: true}}
"""
    return _serve(port, folder, more, backend)


def _litellm(port: int, backend: int, folder: Path) -> list[str]:
    config = f"""
model_list:
  - model_name: mock
    litellm_params: {{model: openai/mock, api_base: "http://127.0.0.1:{backend}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
general_settings: {{master_key: "{KEY}"}}
"""
    program = str(ROOT / ".venv-bench-litellm/bin/litellm")
    file = _written(folder / "config.yaml", config)
    return [program, "--config", file, "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]


def _portkey(port: int, _backend: int, _folder: Path) -> list[str]:
    script = ROOT / ".cache/bench-portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
    return ["node", str(script), f"--port={port}", "--headless"]


def _portkey_headers(backend: int) -> dict[str, str]:
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{backend}/v1"}


def _vllm_router(port: int, backend: int, _folder: Path) -> list[str]:
    program = str(ROOT / ".venv-bench-vllm-router/bin/vllm-router")
    worker = f"http://127.0.0.1:{backend}"
    return [
        program,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker-urls",
        worker,
        "--policy",
        "round_robin",
    ]


def _native(port: int, backend: int, folder: Path) -> list[str]:
    program = NATIVE_TARGET / "release/agentguard-native-prototype"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    return [str(program), str(port), str(backend), str(folder / "runs.db"), digest]


GATEWAYS: tuple[Gateway, ...] = (
    Gateway("agentguard", _nothing, _everything),
    Gateway("agentguard, pure gateway", _nothing, _pure),
    Gateway(
        "agentguard, pure gateway, compiled",
        compiled.build_compiled_copy,
        _pure_compiled,
        env={"PYTHONPATH": str(compiled.HOME)},
    ),
    Gateway("native prototype", _build_native, _native),
    Gateway("litellm", _pip(".venv-bench-litellm", "litellm", LITELLM), _litellm),
    Gateway("portkey", _install_portkey, _portkey, _portkey_headers, env={"NODE_ENV": "production"}),
    Gateway("vllm-router", _pip(".venv-bench-vllm-router", "vllm-router", VLLM_ROUTER), _vllm_router),
)
PEERS = ("litellm", "portkey", "vllm-router")


def wrk() -> str:
    """Return the path of wrk, the load generator; install the distribution's package if possible."""
    found = shutil.which("wrk")
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        try:
            _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "wrk"])
        except (OSError, subprocess.SubprocessError):
            found = None
        found = shutil.which("wrk")
    if found is None:
        raise SystemExit("wrk is needed as load generator: apt-get install wrk, or brew install wrk")
    return found
