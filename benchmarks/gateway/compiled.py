"""Copy of agentguard whose modules on the path of a plain request are compiled with mypyc.

The product has no compiled wheels. The copy measures the gain that they would have.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gateway.processes import NoPeer

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache/bench-compiled"
_PACKAGES = ("agentguard", "server/agentguard_server")
MODULES = (
    "agentguard/backends/http/backend.py",
    "agentguard/backends/http/connection.py",
    "agentguard/backends/http/connection_pool.py",
    "agentguard/backends/http/response_parser.py",
    "agentguard/backends/http/response_stream.py",
    "agentguard/backends/load_balancer.py",
    "agentguard/backends/pool.py",
    "agentguard/backends/replica.py",
    "agentguard_server/proxy/auth/authorization.py",
    "agentguard_server/proxy/http/headers.py",
    "agentguard_server/proxy/http/server_protocol.py",
    "agentguard_server/proxy/http/request_cycle.py",
    "agentguard_server/proxy/requests/handler.py",
    "agentguard_server/proxy/requests/response_writer.py",
    "agentguard_server/proxy/routes.py",
    "agentguard_server/proxy/telemetry/metrics.py",
)
"""Compiled modules. mypyc rejects the defaults of `agentguard.options.Options` and the structs of msgspec."""


def build_compiled_copy() -> None:
    """Copy the packages and compile the modules, unless the copy is of the present sources."""
    sources = sorted(file for package in _PACKAGES for file in (ROOT / package).rglob("*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    mark = HOME / "digest"
    if mark.exists() and mark.read_text() == digest:
        return
    print(f"compiling {len(MODULES)} modules into {HOME} ...", file=sys.stderr)
    shutil.rmtree(HOME, ignore_errors=True)
    for package in _PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, HOME / Path(package).name, ignore=ignored)
    (HOME / "mypy.ini").write_text("[mypy]\nignore_missing_imports = True\n")
    command = [sys.executable, "-c", "from mypyc.__main__ import main; main()", *MODULES]
    try:
        subprocess.run(command, cwd=HOME, check=True, capture_output=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoPeer(f"the compiled copy could not be built: {type(error).__name__}") from None
    mark.write_text(digest)
