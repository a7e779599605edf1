"""Program as the agent of a campaign: it needs no code for agentguard, only the URL of its model endpoint."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from agentguard.bundles import RunBinding
from agentguard.chaos.injection import InjectionBinding
from agentguard.errors import ConfigError
from agentguard.testing.fake_backend import FaultBackend
from agentguard.trajectory.model import Trajectory

_MAX_ERROR_CHARS: Final = 200


class ProgramFailed(Exception):
    """The program of a campaign ended with an exit status other than 0, or not in time."""


class ProgramAgent:
    """Agent that runs a program against an endpoint with faults, and returns its conversation.

    Args:
        command: program and arguments.
        upstream: base URL of the endpoint that answers, such as a proxy; None for a fake endpoint.
        environment: variables of the program; ``{url}`` is replaced by the URL of the endpoint with faults.
        port: port of the endpoint with faults; 0 lets the system choose.
        timeout_s: seconds after which the program is stopped.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        upstream: str | None,
        environment: Mapping[str, str],
        port: int = 0,
        timeout_s: float = 120.0,
    ) -> None:
        self._command, self._upstream, self._environment = tuple(command), upstream, dict(environment)
        self._port, self._timeout_s = port, timeout_s

    def __call__(self, binding: RunBinding) -> Trajectory:
        """Run the program.

        Raises:
            ProgramFailed: the exit status is not 0, or the program did not end in time.
            ConfigError: the program cannot be started, or it sent no request.
        """
        from agentguard.chaos.fault_endpoint import ProgramTraffic, serve_traffic

        assert isinstance(binding, InjectionBinding)
        traffic = ProgramTraffic(binding)
        with ExitStack() as stack:
            upstream = self._upstream or stack.enter_context(FaultBackend()).url
            url = stack.enter_context(serve_traffic(traffic, upstream, port=self._port))
            self._run(url)
        return traffic.build_trajectory(binding.run_id)

    def _run(self, url: str) -> None:
        variables = {name: value.replace("{url}", url) for name, value in self._environment.items()}
        try:
            done = subprocess.run(  # noqa: S603 - the campaign file names the program
                self._command,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"the program did not end within {self._timeout_s:g} s") from None
        except OSError as error:
            raise ConfigError(
                f"target.command: {self._command[0]} cannot be started: {error.strerror}"
            ) from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            reason = lines[-1][:_MAX_ERROR_CHARS] if lines else "no text on stderr"
            raise ProgramFailed(f"exit status {done.returncode}: {reason}")
