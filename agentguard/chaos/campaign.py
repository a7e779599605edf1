"""Campaign file: target, steady state, faults, schedule and abort rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentguard.bundles import Bundle, read_bundle
from agentguard.bundles.bindings import RecordableAgent
from agentguard.chaos.faults import GUARD_FAULTS, MODEL_FAULTS, TOOL_FAULTS
from agentguard.chaos.injection import MODEL_SITE, get_faults
from agentguard.config.policy import format_validation_error, load_yaml
from agentguard.errors import ConfigError
from agentguard.plugins import import_function
from agentguard.trajectory.model import Trajectory

CheckFunction = Callable[[Trajectory], bool]
"""Function that returns True if a run is successful."""

_KNOWN_FAULTS = {"tool": TOOL_FAULTS, "model": MODEL_FAULTS, "guard": GUARD_FAULTS}
_REFERENCE = re.compile(r"^[\w.]+:\w+$")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CampaignTarget(_Section):
    """Agent under test: a function or a program.

    Attributes:
        agent: ``MODULE:FUNCTION`` of the agent. The function takes a `RunBinding`, returns its trajectory,
            and builds a new world for each call.
        bundle: bundle of a run of ``agent``: its recorded answers and results take the place of the model and
            the tools.
        command: program with its arguments instead of ``agent``. A run is successful if the program exits
            with 0.
        upstream: base URL of the model endpoint for the program, such as a proxy; by default a fake endpoint.
        environment: variables of the program; ``{url}`` is replaced by the URL of the endpoint with faults.
        port: port of the endpoint with faults; 0 lets the system choose.
        timeout_s: seconds after which the program is stopped.
        check: ``MODULE:FUNCTION`` that takes a trajectory and returns True if the run is successful. By
            default a run is successful if its last text and its effects are those of the run without a fault.
        effects: names of the tools with effects; by default all tools whose names do not denote a read.
    """

    agent: str | None = None
    bundle: str | None = None
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    upstream: str | None = None
    environment: Mapping[str, str] = Field(
        default={"OPENAI_BASE_URL": "{url}/v1", "ANTHROPIC_BASE_URL": "{url}"}
    )
    port: int = Field(default=0, ge=0, le=65535)
    timeout_s: float = Field(default=120.0, gt=0)
    check: str | None = None
    effects: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _validate_target(self) -> Self:
        if (self.agent is None) == (self.command is None):
            raise ValueError("needs either agent or command")
        if self.bundle is not None and self.agent is None:
            raise ValueError("bundle needs agent")
        return self

    @field_validator("agent", "check")
    @classmethod
    def _validate_reference(cls, value: str | None) -> str | None:
        if value is not None and _REFERENCE.match(value) is None:
            raise ValueError("must be MODULE:FUNCTION")
        return value


class SteadyState(_Section):
    """Conditions on the runs without a fault. A campaign whose target violates one does not start.

    Attributes:
        min_success: minimum share of successful runs.
        max_extra_calls: growth of model and tool calls, compared with the run without a fault, above which a
            successful run is degraded; 0.5 is 50 %.
    """

    min_success: float = Field(default=1.0, ge=0, le=1)
    max_extra_calls: float = Field(default=0.5, ge=0)


class FaultSelection(_Section):
    """Faults to inject, by kind of call; by default all.

    Attributes:
        tool, model, guard: names of the faults; those of the guard need an agent that binds judge or store.
        delay_s: seconds of the fault ``slow``.
        consecutive_calls: calls of the site in sequence that get the fault: more than one is an outage.
    """

    tool: tuple[str, ...] = tuple(TOOL_FAULTS)
    model: tuple[str, ...] = tuple(MODEL_FAULTS)
    guard: tuple[str, ...] = tuple(GUARD_FAULTS)
    delay_s: float = Field(default=60.0, ge=0)
    consecutive_calls: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _validate_names(self) -> Self:
        for kind, known in _KNOWN_FAULTS.items():
            unknown = sorted(set(getattr(self, kind)) - set(known))
            if unknown:
                raise ValueError(f"unknown {kind} fault {', '.join(unknown)} (known: {', '.join(known)})")
        return self

    def select(self, site: str) -> list[str]:
        """Return the names of the selected faults that a site can have."""
        kind = "model" if site == MODEL_SITE else site.partition(":")[0]
        return [name for name in getattr(self, kind) if name in get_faults(site)]


class CampaignSchedule(_Section):
    """Order and number of the runs.

    Attributes:
        repeats: runs for each fault and call.
        max_calls_per_site: calls of each site that get a fault: the first ones of the run without a fault.
        max_runs: maximum number of runs with a fault; a sample by ``seed`` if there are more.
        seed: seed of the sample and of the order.
        virtual_time: True if the waits of the agent take no wall time: ``time.sleep``, and the sleeps and
            timeouts of asyncio. A coroutine agent that waits for a network needs the real time.
    """

    repeats: int = Field(default=1, ge=1, le=1_000)
    max_calls_per_site: int = Field(default=3, ge=1)
    max_runs: int = Field(default=10_000, ge=1)
    seed: int = 0
    virtual_time: bool = True


class AbortRules(_Section):
    """Conditions that end the campaign.

    Attributes:
        max_unsafe: number of unsafe runs after which no further run starts; None for no limit.
        max_seconds: duration after which no further run starts.
    """

    max_unsafe: int | None = Field(default=None, ge=1)
    max_seconds: float = Field(default=600.0, gt=0)


class Campaign(_Section):
    """Chaos campaign of one agent."""

    version: Literal[1]
    target: CampaignTarget
    steady_state: SteadyState = SteadyState()
    faults: FaultSelection = FaultSelection()
    schedule: CampaignSchedule = CampaignSchedule()
    abort: AbortRules = AbortRules()

    @classmethod
    def load(cls, path: str | Path) -> Campaign:
        """Read a campaign file. Raises ConfigError with the file and every invalid field."""
        try:
            return cls.model_validate(load_yaml(path))
        except ValidationError as error:
            raise ConfigError(f"{path}: {format_validation_error(error, cls)}") from None

    def load_agent(self) -> RecordableAgent:
        """Import the agent, or build the agent of the program. Raises ConfigError or MissingExtra."""
        target = self.target
        if target.command is not None:
            from agentguard.chaos.program_agent import ProgramAgent  # needs the extra chat

            return ProgramAgent(
                target.command,
                upstream=target.upstream,
                environment=target.environment,
                port=target.port,
                timeout_s=target.timeout_s,
            )
        assert target.agent is not None
        return cast(RecordableAgent, import_function(target.agent, place="target.agent: "))

    def load_recording(self) -> Bundle | None:
        """Read the bundle of the target; None without one. Raises BundleError."""
        return None if self.target.bundle is None else read_bundle(self.target.bundle)

    def load_check(self) -> CheckFunction | None:
        """Import the check; None without one. Raises ConfigError."""
        if self.target.check is None:
            return None
        return cast(CheckFunction, import_function(self.target.check, place="target.check: "))
