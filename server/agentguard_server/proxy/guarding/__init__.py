"""The guard behind the proxy: runs are judged as they pass, or looked at afterwards.

`build` makes what guards; `agentguard_server.proxy.guarding.capture` keeps what passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentguard.settings import Policy
    from agentguard_server.proxy.guarding.inline import Inline, Log, Shared
    from agentguard_server.proxy.guarding.options import RunsOptions, Stream


def build(
    policy: Policy,
    *,
    stream: Stream = "hold_tools",
    runs: RunsOptions | None = None,
    log: Log | None = None,
    tag: str = "",
    shared: Shared | None = None,
) -> Inline:
    """Make what guards requests; see `agentguard_server.proxy.guarding.inline.Inline`."""
    from agentguard_server.proxy.guarding.inline import Inline

    return Inline(policy, stream=stream, runs=runs, log=log, tag=tag, shared=shared)


__all__ = ["build"]
