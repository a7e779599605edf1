"""Command line that serves a model with vLLM, with the flags that a judge needs.

The flags depend on the installed version of vLLM and on the model's own configuration. ``agentguard judge
serve --explain`` prints the reason of each flag. Flags that the installed version does not have are omitted.

The pooling runner serves a classifier, a scorer or an embedding model, without the flags for generation.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from agentguard.config.judge import PoolingTask
from agentguard.errors import ConfigError
from agentguard.judge.vllm.installation import VllmInstallation, inspect_installation, locate_model_files
from agentguard.judge.vllm.model_facts import Attention, ModelFacts, list_local_files, read_model_facts
from agentguard.judge.vllm.presets import ServePreset
from agentguard.loopback import is_loopback

ServedTask = Literal["chat"] | PoolingTask
"""Purpose that a model is served for."""

SHUTDOWN_TIMEOUT_S: Final = 15
_QUEUE_LIMIT: Final = 64
_CPU_BLOCK_SIZE: Final = 32
_RETENTION_INTERVAL: Final = 128
_KEEP_ALIVE_VARIABLE: Final = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
_ENVIRONMENT: Final = {
    # Clients of this package close idle connections after 2 s.
    _KEEP_ALIVE_VARIABLE: (
        "75",
        "with vLLM's 5 s, a busy server closes idle connections late and resets new requests",
    ),
    "VLLM_NO_USAGE_STATS": ("1", "no usage reports"),
    "DO_NOT_TRACK": ("1", "no usage reports"),
}
"""Environment variables of the server: value and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Model and settings of a vLLM server.

    Attributes:
        model: name on Hugging Face, or folder.
        task: purpose: a chat judge, or the task of a pooling judge.
        served_name: model name that clients use.
        host, port: address to listen on; port 0 selects a free one.
        api_key: key that clients must send; None accepts every client that can reach the port.
        max_model_len: maximum of prompt and answer in tokens; None is the model's own maximum.
        preset: preset of the model, whose limits apply.
        python: interpreter that has vLLM, if the ``vllm`` command is not on the path (the CPU build).
        offline: do not download the model.
        extra_args: further arguments to vLLM, after the chosen flags; a repeated flag overrides a chosen one.
    """

    model: str
    task: ServedTask = "chat"
    served_name: str = "judge"
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    max_model_len: int | None = None
    preset: ServePreset | None = None
    python: Path | None = None
    offline: bool = False
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerFlag:
    """Flag of the server with its value and its reason."""

    name: str
    value: str | None
    reason: str

    @property
    def argv(self) -> tuple[str, ...]:
        """Arguments of the command line."""
        return (self.name,) if self.value is None else (self.name, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """Command line of a server.

    Attributes:
        program: program, subcommand and model.
        flags: chosen flags.
        missing_flags: omitted flags, which the installed vLLM does not have.
        extra_args: arguments of the user, after the flags; a repeated flag overrides a chosen one.
    """

    program: tuple[str, ...]
    flags: tuple[ServerFlag, ...]
    missing_flags: tuple[ServerFlag, ...] = ()
    extra_args: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """Arguments of the command line, without secrets: other users of the machine can read them."""
        return [*self.program, *(part for flag in self.flags for part in flag.argv), *self.extra_args]

    def has_flag(self, name: str) -> bool:
        """Return whether the command has a chosen flag."""
        return any(flag.name == name for flag in self.flags)

    def explain(self) -> Iterator[tuple[str, str]]:
        """Yield each part of the command with its reason, the environment first."""
        for name, (value, reason) in _ENVIRONMENT.items():
            yield f"{name}={value}", reason
        yield shlex.join(self.program), "the program and the model"
        for flag in self.flags:
            yield shlex.join(flag.argv), flag.reason
        if self.extra_args:
            yield shlex.join(self.extra_args), "your own arguments; a repeated flag overrides the one above"
        for flag in self.missing_flags:
            yield f"(without {flag.name})", f"the installed vLLM does not have it: {flag.reason}"


def plan_command(options: ServeOptions, port: int) -> ServeCommand:
    """Plan the command line for the installed vLLM and the model's own configuration.

    Raises:
        ConfigError: vLLM is not installed or too old, or the server would accept clients of other
            machines without a key.
    """
    if not is_loopback(options.host) and options.api_key is None:
        raise ConfigError(
            f"judge serve: {options.host} accepts clients from other machines: require a key with "
            "--api-key-env, or listen on 127.0.0.1"
        )
    installation = inspect_installation(options.python)
    files = list_local_files(options.model) or locate_model_files(
        installation.interpreter, options.model, environment=build_environment(options)
    )
    is_known = any(file.name == "config.json" for file in files)
    facts = read_model_facts(files) if is_known or options.preset is None else options.preset.facts
    return build_command(options, port, installation, facts)


def build_command(
    options: ServeOptions, port: int, installation: VllmInstallation, model: ModelFacts
) -> ServeCommand:
    """Build the command line for a known vLLM and known facts about the model."""
    chosen = tuple(_choose_flags(options, port, installation, model))
    has_model_flag = installation.program[1:2] == ("-m",)
    program = (*installation.program, *(("--model",) if has_model_flag else ()), options.model)
    return ServeCommand(
        program=program,
        flags=tuple(flag for flag in chosen if installation.has_flag(flag.name)),
        missing_flags=tuple(flag for flag in chosen if not installation.has_flag(flag.name)),
        extra_args=options.extra_args,
    )


def _choose_flags(
    options: ServeOptions, port: int, installation: VllmInstallation, model: ModelFacts
) -> Iterator[ServerFlag]:
    yield ServerFlag("--served-model-name", options.served_name, "clients do not depend on the model's path")
    yield ServerFlag("--host", options.host, "address of the server")
    yield ServerFlag("--port", str(port), "port of the server")
    yield ServerFlag(
        "--shutdown-timeout",
        str(SHUTDOWN_TIMEOUT_S),
        "running requests complete after SIGTERM",
    )
    yield ServerFlag("--max-num-queued-reqs", str(_QUEUE_LIMIT), "a full queue answers 503 at once")
    yield ServerFlag("--scheduling-policy", "priority", "the health probe passes the waiting requests")
    if options.task == "chat":
        yield from _choose_chat_flags(installation, model)
    else:
        yield ServerFlag("--runner", "pooling", f"the model's task is {options.task}")
    length = options.max_model_len or (None if options.preset is None else options.preset.max_model_len)
    if length is not None:
        reason = "your own limit" if options.max_model_len else "the preset's limit, which fits the memory"
        yield ServerFlag("--max-model-len", str(length), reason)
    if options.preset is not None:
        tokens = str(options.preset.max_num_batched_tokens)
        yield ServerFlag("--max-num-batched-tokens", tokens, "long runs are read in larger steps")


def _choose_chat_flags(installation: VllmInstallation, model: ModelFacts) -> Iterator[ServerFlag]:
    yield ServerFlag("--enable-prompt-tokens-details", None, "answers report their prefix cache hits")
    if installation.is_cpu and model.attention is Attention.STATE_SPACE:
        reason = "the CPU's Mamba layers fail when the cache keeps a state inside of a prompt"
        yield ServerFlag("--no-enable-prefix-caching", None, reason)
    else:
        yield ServerFlag("--enable-prefix-caching", None, "all questions about a run share one read of it")
    if installation.is_cpu:
        yield ServerFlag(
            "--block-size", str(_CPU_BLOCK_SIZE), "the CPU's default of 128 caches less of a run"
        )
    if model.attention is Attention.SLIDING:
        interval = _CPU_BLOCK_SIZE if installation.is_cpu else _RETENTION_INTERVAL
        yield ServerFlag(
            "--prefix-cache-retention-interval",
            str(interval),
            "the cache of sliding-window layers keeps only the end of a prompt by default",
        )
    if model.has_thinking_switch:
        yield ServerFlag(
            "--default-chat-template-kwargs",
            '{"enable_thinking": false}',
            "the model reasons by default; a request can switch it on (judge: reasoning_tokens)",
        )


def build_environment(options: ServeOptions, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build the server's environment: the inherited one, the API key, and no usage reports."""
    base = os.environ if inherited is None else inherited
    environment = {**base, **{name: value for name, (value, _) in _ENVIRONMENT.items()}}
    if _KEEP_ALIVE_VARIABLE in base:
        environment[_KEEP_ALIVE_VARIABLE] = base[_KEEP_ALIVE_VARIABLE]
    if options.offline:
        environment["HF_HUB_OFFLINE"] = "1"
    if options.api_key is not None:
        environment["VLLM_API_KEY"] = options.api_key
    return environment
