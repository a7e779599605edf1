"""Load on a served judge: many clients at once, and the end of each of their requests."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import CallError, EndpointOptions, ErrorKind
from agentguard.judge.vllm.server_metrics import fetch_counters
from tests.judge_process import Serving

_LABELS: Final = ("A", "B")
_PAUSE_S: Final = 1.0
"""Pause of a client that the full queue refused."""
_SENTENCE: Final = "The agent looks for a seat in row {row} and finds none that is free. "


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """End of all requests of a load.

    Attributes:
        answered: requests with an answer.
        refused: requests that the full queue refused at once.
        lost: all other requests by error, with the number of each.
        served: requests that the server counted as completed meanwhile, probes included.
        restarts: restarts of the server meanwhile.
        phases: phases of the server meanwhile, in order.
    """

    answered: int
    refused: int
    lost: dict[str, int]
    served: int
    restarts: int
    phases: list[str]


@dataclass(slots=True)
class _Tally:
    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


def run_load(serving: Serving, *, clients: int, seconds: float, deadline_s: float = 120.0) -> LoadReport:
    """Ask from many clients for some seconds, each again after its answer; then wait for open requests.

    Args:
        serving: the supervised server, which is ready.
        clients: number of concurrent clients.
        seconds: time in which clients send further requests.
        deadline_s: deadline of one request.
    """
    ready = serving.seen[-1]
    root = ready["url"].removesuffix("/v1")
    options = EndpointOptions(deadline_s=deadline_s, max_concurrent=clients)
    endpoint = JudgeEndpoint(ready["url"], options=options)
    reader = threading.Thread(target=_read_states, args=(serving,), daemon=True)
    reader.start()
    first = len(serving.seen)
    try:
        endpoint.loop.run(endpoint.select_label(_build_prompt(0, 0), _LABELS))
        before = fetch_counters(root)
        tally = endpoint.loop.run(_ask_all(endpoint, clients, seconds))
        after = fetch_counters(root)
    finally:
        endpoint.close()
    states = serving.seen[first:]
    return LoadReport(
        answered=tally.ends["answered"],
        refused=tally.ends[ErrorKind.BUSY],
        lost=dict(tally.errors),
        served=int(_count_served(after) - _count_served(before)),
        restarts=(serving.seen[-1]["restarts"]) - ready["restarts"],
        phases=[f"{state['phase']}: {state['reason'][:200]}" for state in states],
    )


async def _ask_all(endpoint: JudgeEndpoint, clients: int, seconds: float) -> _Tally:
    tally, end = _Tally(), asyncio.get_running_loop().time() + seconds
    await asyncio.gather(*(_ask_repeatedly(endpoint, number, end, tally) for number in range(clients)))
    return tally


async def _ask_repeatedly(endpoint: JudgeEndpoint, client: int, end: float, tally: _Tally) -> None:
    turn = 0
    while asyncio.get_running_loop().time() < end:
        turn += 1
        answer = await endpoint.select_label(_build_prompt(client, turn), _LABELS)
        if not isinstance(answer, CallError):
            tally.ends["answered"] += 1
        elif answer.kind is ErrorKind.BUSY:
            tally.ends[ErrorKind.BUSY] += 1
            await asyncio.sleep(_PAUSE_S)
        else:
            tally.errors[f"{answer.kind}: {answer.message}"] += 1


def _build_prompt(client: int, turn: int) -> tuple[dict[str, str], ...]:
    """Return a question about a run that no other client and no other turn has asked about."""
    run = "".join(_SENTENCE.format(row=f"{client}-{turn}-{place}") for place in range(12))
    return ({"role": "user", "content": f"{run}\nDid it fail?\nA: yes\nB: no\nAnswer with one letter."},)


def _count_served(counters: Any) -> float:
    return float(counters.get("vllm:request_success_total", 0.0))


def _read_states(serving: Serving) -> None:
    try:
        serving.until("given_up")
    except AssertionError:  # the command has ended
        return
