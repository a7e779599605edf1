"""What is told of a request afterwards: to capture, metrics, spans and logs."""

from __future__ import annotations

from agentguard_server.proxy.gateway import Gateway
from agentguard_server.proxy.relay import Out
from agentguard_server.proxy.seam import Asked, Guarded, Recorded


def tell(gateway: Gateway, asked: Asked, out: Out, guarded: Guarded | None) -> None:
    """Tell all recorders what became of a request."""
    recorded = Recorded(
        asked=asked,
        sent=None if guarded is None else guarded.body,
        status=out.status,
        answer=out.kept,
        complete=out.complete,
        replica=out.replica,
        error=out.error,
        guarded=guarded is not None,
        notes=out.notes,
        first_s=None if out.first_at is None else out.first_at - asked.started,
        seconds=gateway.clock.now() - asked.started,
        did=() if guarded is None else guarded.headers,
    )
    for recorder in gateway.recorders:
        recorder.record(recorded)
