"""The command that serves a model with vLLM, with the flags that a judge needs.

Why each: structured outputs are on by default; a served name keeps clients free of the model's path; prompt
token details tell what the prefix cache gave; an interval of retention keeps the prompts of models with
sliding windows in it (measured on vLLM 0.32); a shutdown timeout lets running requests end at SIGTERM, as the
default lets none; a bounded queue answers 503 at once where waiting would be in vain. What concerns prompts
that are answered token by token is left out for a classifier, a scorer or an embedding model, which the
pooling runner serves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from agentguard.errors import ConfigError
from agentguard.judge.classifier.spec import PoolingTask

ServedTask = Literal["chat"] | PoolingTask
"""What a model is served for."""

SHUTDOWN_TIMEOUT_S: Final = 15
_BLOCK_SIZE: Final = 32
_NO_TELEMETRY: Final = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""vLLM reports its use to its makers unless told not to; nothing that we start reports anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What is served, and how.

    Attributes:
        model: name or folder, as vLLM takes it.
        task: what it is served for: a chat judge, or what a pooling judge asks of it.
        served_name: name that clients ask for.
        host, port: address to listen on; port 0 takes a free one.
        api_key: what clients must send; None lets anybody in who can reach the port.
        context: longest prompt and answer in tokens; the model's own if None.
        python: interpreter that has vLLM, where the ``vllm`` command is not on the path (the CPU build).
        offline: do not look for the model beyond this machine.
        extra: further arguments to vLLM, after ours; a repeated flag of theirs wins.
    """

    model: str
    task: ServedTask = "chat"
    served_name: str = "judge"
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    max_model_len: int | None = None
    python: Path | None = None
    offline: bool = False
    extra_args: tuple[str, ...] = ()


def build_command(options: ServeOptions, port: int) -> list[str]:
    """The command line, without secrets, which other users of the machine could read there.

    Raises:
        ConfigError: there is no vLLM.
    """
    flags = [
        *("--served-model-name", options.served_name, "--host", options.host, "--port", str(port)),
        *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S), "--max-num-queued-reqs", "64"),
    ]
    if options.task == "chat":
        flags += ["--enable-prompt-tokens-details", "--block-size", str(_BLOCK_SIZE)]
        flags += ["--prefix-cache-retention-interval", str(_BLOCK_SIZE)]
    else:
        flags += ["--runner", "pooling"]
    if options.max_model_len is not None:
        flags += ["--max-model-len", str(options.max_model_len)]
    return [*_resolve_program(options), *flags, *options.extra_args]


def build_environment(options: ServeOptions, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the server: ours, the key, and nothing reported to anybody."""
    made = {**(os.environ if inherited is None else inherited), **_NO_TELEMETRY}
    if options.offline:
        made["HF_HUB_OFFLINE"] = "1"
    if options.api_key is not None:
        made["VLLM_API_KEY"] = options.api_key
    return made


def _resolve_program(options: ServeOptions) -> list[str]:
    if options.python is not None:
        if not options.python.is_file():
            raise ConfigError(f"judge serve: there is no interpreter {options.python}")
        return [str(options.python), "-m", "vllm.entrypoints.openai.api_server", "--model", options.model]
    found = shutil.which("vllm")
    if found is None:
        raise ConfigError(
            "judge serve: there is no command vllm; install vLLM (pip install vllm), or name the interpreter "
            "of an environment that has it with --python"
        )
    return [found, "serve", options.model]
