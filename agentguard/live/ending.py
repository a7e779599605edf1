"""The end of a run where it may wait for somebody: for an integration's body, and for asynchronous code."""

from __future__ import annotations

import asyncio

from agentguard.live import twins
from agentguard.live.session import Session
from agentguard.recover.base import Plan


def ending(session: Session) -> twins.Body[Plan | None]:
    """`Session.end` for a body: aside, where it may wait for somebody."""
    if not session.rules.waits:
        return session.end()
    plan: Plan | None = yield twins.Aside(session.end)
    return plan


async def aend(session: Session) -> Plan | None:
    """`Session.end` for asynchronous code: in a thread, where it may wait for somebody."""
    return await asyncio.to_thread(session.end) if session.rules.waits else session.end()
