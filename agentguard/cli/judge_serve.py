"""``agentguard judge serve``: a model server (vLLM) under a supervisor, which restarts it after failures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from agentguard.cli.json_output import print_json
from agentguard.cli.judge_endpoint import read_api_key
from agentguard.errors import ConfigError

if TYPE_CHECKING:
    from agentguard.judge.vllm.command import ServeCommand
    from agentguard.judge.vllm.presets import ServePreset
    from agentguard.judge.vllm.status_server import ServerStatus

DEFAULT_PORT: Final = 8_000
"""Port of vLLM's own server."""

TASKS: Final = ("chat", "classify", "score", "embed")


def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET|MODEL]",
            help="Preset by GPU memory (24gb, 48gb, 80gb, 141gb), or a model: a name or a folder. "
            "If absent, the preset that fits this machine's GPU.",
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(help=f"Task of the model: {', '.join(TASKS)}; all but chat for a pooling judge.")
    ] = "chat",
    name: Annotated[str, typer.Option(help="Model name that clients request.")] = "judge",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 selects a free port.")
    ] = DEFAULT_PORT,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", min=256, help="Upper bound on prompt and answer, in tokens."),
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter with vLLM, if `vllm` is not on the path.")
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env", metavar="NAME", help="Environment variable with the key that clients must send."
        ),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use local files only.")] = False,
    startup_timeout_s: Annotated[
        float, typer.Option("--startup-timeout", min=1, help="Time limit of the start, in seconds.")
    ] = 600.0,
    health_interval_s: Annotated[
        float, typer.Option("--health-interval", min=0.1, help="Seconds between health checks.")
    ] = 5.0,
    probe_interval_s: Annotated[
        float, typer.Option("--probe-interval", min=1, help="Seconds between known-answer probes.")
    ] = 60.0,
    max_restarts: Annotated[int, typer.Option(min=0, help="Upper bound on restarts.")] = 5,
    state_port: Annotated[int, typer.Option(min=0, max=65_535, help="Loopback port of the state.")] = 0,
    log: Annotated[Path | None, typer.Option(help="File for the server's output.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the command with the reason of each flag, and exit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each state as a line of JSON.")] = False,
) -> None:
    """Serve a judge with vLLM until SIGTERM or Ctrl-C; arguments after -- go to vLLM.

    Exit status: 0 after a signal, 1 after too many restarts, 2 if it cannot be started.
    """
    from agentguard.judge.vllm.command import ServedTask, ServeOptions, plan_command
    from agentguard.judge.vllm.model_server import serve_model as run
    from agentguard.judge.vllm.status_server import ServerPhase
    from agentguard.judge.vllm.supervisor import WatchOptions

    if task not in TASKS:
        raise ConfigError(f"judge serve: {task!r} is not a task; there are: {', '.join(TASKS)}")
    key = read_api_key(key_env)
    model_name, preset = _resolve_model(model)
    options = ServeOptions(
        model=model_name,
        preset=preset,
        task=cast("ServedTask", task),
        served_name=name,
        host=host,
        port=port,
        api_key=key,
        max_model_len=max_model_len,
        python=python,
        offline=offline,
        extra_args=tuple(context.args),
    )
    if explain:
        _print_explanation(plan_command(options, port), preset)
        return
    watch = WatchOptions(
        start_timeout_s=startup_timeout_s,
        heartbeat_interval_s=health_interval_s,
        probe_interval_s=probe_interval_s,
        max_restarts=max_restarts,
    )
    printed_states: list[tuple[str, int | None, str]] = []

    def print_state(state: ServerStatus, url: str) -> None:
        state_key = (str(state.phase), state.pid, state.reason)
        if printed_states and printed_states[-1] == state_key:
            return
        printed_states.append(state_key)
        if json:
            print_json(state.as_dict() | {"state_url": url})
        else:
            typer.echo(_format_state(state, url), err=True)

    last_status = run(options, watch, state_port=state_port, log=log, on_status=print_state)
    raise typer.Exit(1 if last_status.phase is ServerPhase.GIVEN_UP else 0)


def _resolve_model(model: str | None) -> tuple[str, ServePreset | None]:
    """Return the model and its preset: the named one, or without a model the one for this machine's GPU."""
    from agentguard.judge.vllm.presets import PRESETS, detect_gpu_memory_gb, select_preset

    preset = select_preset(detect_gpu_memory_gb()) if model is None else PRESETS.get(model)
    if preset is None and re.fullmatch(r"\d+ ?gi?b?", model or "", re.IGNORECASE):
        raise ConfigError(f"judge serve: {model!r} is not a preset; there are: {', '.join(PRESETS)}")
    return (model or "" if preset is None else preset.model), preset


def _print_explanation(command: ServeCommand, preset: ServePreset | None) -> None:
    typer.echo(shlex.join(command.argv))
    typer.echo()
    if preset is not None:
        typer.echo(f"{preset.model} ({preset.precision}, {preset.memory_gb} GB): {preset.reason}")
    for part, reason in command.explain():
        typer.echo(f"{part}: {reason}")


def _format_state(state: ServerStatus, url: str) -> str:
    text = f"{state.phase}: {state.url}"
    if state.phase == "ready":
        right_count, asked_count = state.probe.get("right"), state.probe.get("asked")
        text += f" (probes right {right_count} of {asked_count}; state at {url})"
    return f"{text}: {state.reason}" if state.reason else text
