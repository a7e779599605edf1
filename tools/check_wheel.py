"""Install a wheel into a new environment and use its commands.

    python tools/check_wheel.py dist/agentguard-0.1.0-py3-none-any.whl

The environment has the core dependencies alone, so a missing package file or an import of an extra fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "samples" / "11-letter.json"
COMMANDS = [
    ("--version", "{version}", 0),
    (f"diagnose {SAMPLE}", "root cause", 0),
    (f"validate {SAMPLE}", "all records are readable", 0),
    ("taxonomy list", "agent_error", 0),
    ("dataset list", "who_and_when", 0),
    ("judge info", "", 0),
    ("doctor", "embedded judge", 0),
    ("serve --backend http://127.0.0.1:9/v1", "agentguard[serve]", 2),
    ("serve --new-key name", "agentguard[serve]", 2),
    ("view", "agentguard[view]", 2),
    ("store stats", "agentguard[store]", 2),
    ("schemata list", "agentguard[store]", 2),
    (f"diagnose {SAMPLE} --batch-output verdicts", "agentguard[batch]", 2),
    ("bundle inspect none.agb", "cannot be read", 2),
    ("replay none.agb --agent json:dumps", "cannot be read", 2),
    ("chaos plan none.yaml", "cannot be read", 2),
    ("chaos stitch none.yaml --output chaos", "cannot be read", 2),
    ("diagnose phoenix://project", "agentguard[traces]", 2),
]
"""Arguments, a text of the output, and the exit status."""


def run_command(*command: str, cwd: str, status: int = 0) -> str:
    """Run a command and return its output; end the program unless it exits with ``status``."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode != status:
        sys.exit(f"{' '.join(command)}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def check_wheel(wheel: Path) -> None:
    """Install the wheel, diagnose a sample run, and read the message of a missing extra."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        bin_folder = Path(folder) / "bin"
        pip = (str(bin_folder / "pip"), "install", "--quiet", "--disable-pip-version-check")
        run_command(*pip, str(wheel), cwd=folder)
        agentguard = str(bin_folder / "agentguard")
        version = wheel.name.split("-")[1]
        for arguments, text, status in COMMANDS:
            output = run_command(agentguard, *arguments.split(), cwd=folder, status=status)
            if text.format(version=version) not in output:
                sys.exit(f"agentguard {arguments}: {text!r} is not in the output:\n{output}")
    print(f"{wheel.name}: its commands work in a new environment")


if __name__ == "__main__":
    check_wheel(Path(sys.argv[1]).resolve())
