"""Command line that serves a model with vLLM, with the flags that a judge needs.

- Structured outputs are on by default.
- A served name makes clients independent of the model's path.
- Prompt token details report the prefix cache hits.
- A retention interval keeps the prompts of models with sliding windows in the cache (measured on vLLM 0.32).
- A shutdown timeout lets running requests complete after SIGTERM; the default gives them no time.
- A bounded queue answers 503 at once instead of a wait that would time out.

Flags for token-by-token generation are omitted for a classifier, a scorer or an embedding model, which the
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
"""Purpose that a model is served for."""

SHUTDOWN_TIMEOUT_S: Final = 15
_BLOCK_SIZE: Final = 32
_NO_TELEMETRY: Final = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""Environment that disables vLLM's usage reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Model and settings of a vLLM server.

    Attributes:
        model: name or folder, as vLLM takes it.
        task: purpose: a chat judge, or the task of a pooling judge.
        served_name: model name that clients use.
        host, port: address to listen on; port 0 selects a free one.
        api_key: key that clients must send; None accepts every client that can reach the port.
        max_model_len: maximum of prompt and answer in tokens; None is the model's own maximum.
        python: interpreter that has vLLM, if the ``vllm`` command is not on the path (the CPU build).
        offline: do not download the model.
        extra_args: further arguments to vLLM, after ours; a repeated flag overrides ours.
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
    """Build the command line, without secrets, since other users of the machine could read them there.

    Raises:
        ConfigError: vLLM is not installed.
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
    """Build the server's environment: the inherited one, the API key, and no usage reports."""
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
