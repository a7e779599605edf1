"""What the keeper is told when it is started: one line of JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from agentguard.config.policy import Policy
from agentguard_server.proxy.guard.options import CaptureOptions, RunsOptions


class KeeperConfig(BaseModel):
    """The keeper's configuration.

    Attributes:
        path: of the socket that it listens on.
        capture: what is kept, and where.
        policy: which detectors look at it, and which localizer.
        runs: how requests are joined to runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    capture: CaptureOptions
    policy: Policy
    runs: RunsOptions
