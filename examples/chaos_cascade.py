"""Client with retries and server with a queue: each works, together an outage of seconds does not end.

agentguard chaos stitch examples/chaos_cascade.yaml --output chaos/
"""

from __future__ import annotations

import asyncio
import random

from agentguard.chaos.causality import FaultProbe

WORKERS, SERVICE_S, SECONDS = 4, 0.2, 40.0


class Server:
    """Workers that finish each request, like an HTTP server whose clients have left."""

    def __init__(self, probe: FaultProbe) -> None:
        self.probe, self.slots = probe, asyncio.Semaphore(WORKERS)

    async def serve(self) -> None:
        """Process a request."""
        async with self.slots, self.probe.iteration("server.serve"):
            await self.probe.clock.sleep(SERVICE_S)


async def call(probe: FaultProbe, server: Server, attempts: int) -> None:
    """Send a request, and repeat it after a timeout."""
    for _ in range(attempts):
        try:
            async with probe.iteration("client.attempt") as attempt:
                await asyncio.wait_for(asyncio.shield(server.serve()), 1.0)
                attempt.throw_point(TimeoutError)
            probe.complete()
            return
        except TimeoutError:
            continue


async def generate_load(probe: FaultProbe, rng: random.Random, load: float, attempts: int) -> None:
    """Send requests at a share of the server's capacity."""
    server, calls = Server(probe), []
    while probe.clock.now() < SECONDS:
        calls.append(asyncio.ensure_future(call(probe, server, attempts)))
        await probe.clock.sleep(rng.uniform(0.8, 1.2) * SERVICE_S / WORKERS / load)


async def busy(probe: FaultProbe, rng: random.Random) -> None:
    """High load without retries."""
    await generate_load(probe, rng, 0.8, attempts=1)


async def patient(probe: FaultProbe, rng: random.Random) -> None:
    """Low load with retries."""
    await generate_load(probe, rng, 0.3, attempts=5)


async def production(probe: FaultProbe, rng: random.Random) -> None:
    """High load with retries."""
    await generate_load(probe, rng, 0.8, attempts=5)
