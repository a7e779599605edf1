"""The guard behind the proxy: runs are judged as they pass, or looked at afterwards.

`build` makes what guards; `agentguard_server.proxy.capture.recorder` keeps what passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentguard.config.policy import Policy
    from agentguard_server.proxy.guard.interceptor import ConversationStore, InlineGuard, RunLogFactory
    from agentguard_server.proxy.guard.options import RunsOptions, StreamMode


def build_interceptor(
    policy: Policy,
    *,
    stream_mode: StreamMode = "hold_tools",
    options: RunsOptions | None = None,
    run_log_factory: RunLogFactory | None = None,
    run_id_suffix: str = "",
    conversations: ConversationStore | None = None,
) -> InlineGuard:
    """Make what guards requests; see `agentguard_server.proxy.guard.interceptor.InlineGuard`."""
    from agentguard_server.proxy.guard.interceptor import InlineGuard

    return InlineGuard(
        policy,
        stream_mode=stream_mode,
        options=options,
        run_log_factory=run_log_factory,
        run_id_suffix=run_id_suffix,
        conversations=conversations,
    )


__all__ = ["build_interceptor"]
