"""The guard behind the proxy: runs are judged as they pass, or looked at afterwards.

`build` makes what guards; `agentguard_server.proxy.capture.recorder` keeps what passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentguard.config.policy import Policy
    from agentguard_server.proxy.guard.interceptor import ConversationStore, InlineGuard, RunLogFactory
    from agentguard_server.proxy.guard.options import RunsOptions, Stream


def build(
    policy: Policy,
    *,
    stream: Stream = "hold_tools",
    runs: RunsOptions | None = None,
    log: RunLogFactory | None = None,
    tag: str = "",
    shared: ConversationStore | None = None,
) -> InlineGuard:
    """Make what guards requests; see `agentguard_server.proxy.guard.interceptor.InlineGuard`."""
    from agentguard_server.proxy.guard.interceptor import InlineGuard

    return InlineGuard(policy, stream=stream, runs=runs, log=log, tag=tag, shared=shared)


__all__ = ["build"]
