"""Files and function calls of one request in a worker, over real sockets and after a warm-up.

The limits on files keep the path short for a reader of the code. The number of calls is an estimate of the
processor time of a request that does not depend on the load of the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.bootstrap import Bootstrap

from tests.unit.server.proxy.guard.scripted_model import CHAT
from tests.unit.server.proxy.harness import Got, head_of, read_response, serving

PROJECT = Path(__file__).parents[4]
KEY = "k" * 40
WARM_UP_REQUESTS = 3


@asynccontextmanager
async def model_endpoint(answer: bytes) -> AsyncIterator[int]:
    """Serve the same answer to every request of a keep-alive connection."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                )
                await reader.readexactly(int(length.split(b":")[1]))
                size = b"content-length: %d\r\n\r\n" % len(answer)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + size + answer)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def trace_request(folder: Path, body: dict[str, Any], answer: dict[str, Any]) -> Counter[str]:
    """Return the calls that the last of some requests makes in each file of the project, all features on."""
    calls: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PROJECT)):
            calls[frame.f_code.co_filename] += 1

    async with model_endpoint(json.dumps(answer).encode()) as endpoint:
        key = f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"
        replicas = [{"name": "a", "url": f"http://127.0.0.1:{endpoint}/v1"}]
        settings = {
            "backends": {"replicas": replicas, "health": "off"},
            "keys": [{"name": "test", "hash": key}],
            "guard": {"policy": {"version": 1}},
            "capture": {"store": str(folder / "runs.db")},
            "logs": {"output": str(folder / "log.txt")},
        }
        bootstrap = Bootstrap(ProxySettings.parse(settings))
        await bootstrap.start()
        try:
            async with serving(bootstrap.app_state) as (port, _):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                for number in range(WARM_UP_REQUESTS + 1):
                    data = json.dumps({**body, "user": str(number)}).encode()
                    head = head_of(
                        "POST",
                        "/v1/chat/completions",
                        {"authorization": f"Bearer {KEY}"},
                        b"content-length: %d" % len(data),
                    )
                    got = Got()
                    if number == WARM_UP_REQUESTS:
                        sys.setprofile(trace)
                    writer.write(head + data)
                    await read_response(reader, "POST", got)
                    assert got.status == 200, got.body
                    await asyncio.sleep(0)
                sys.setprofile(None)
                writer.close()
        finally:
            sys.setprofile(None)
            await bootstrap.aclose()
    paths = {str(Path(file).relative_to(PROJECT)): count for file, count in calls.items()}
    return Counter({file: count for file, count in paths.items() if not file.startswith(("tests", ".venv"))})


@pytest.mark.parametrize(("offers_tools", "most_files", "most_calls"), [(False, 25, 145), (True, 60, 630)])
def test_request_enters_few_files_and_functions(
    offers_tools: bool, most_files: int, most_calls: int, tmp_path: Path
) -> None:
    history = [{"role": "user", "content": "Is there a seat?"}]
    body = CHAT.body(history) if offers_tools else {"model": "m", "messages": history}
    answer = CHAT.answer(("call", "find", "c1", "aisle") if offers_tools else ("say", "There is one."))
    calls = asyncio.run(trace_request(tmp_path, body, answer))
    assert len(calls) <= most_files, "\n".join(sorted(calls))
    assert calls.total() <= most_calls, calls.most_common()
    assert "server/agentguard_server/proxy/requests/handler.py" in calls
