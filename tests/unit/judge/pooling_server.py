"""A real HTTP server on loopback with the answer formats of vLLM 0.32's pooling endpoints.

The class of a text depends on its words: the probability grows with the number of ``flaw``. Texts longer than
``longest`` get vLLM's 400.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.unit.judge.chat_server import LONG_S, Handler, error


def sure(text: str) -> float:
    return 1.0 / (1.0 + math.exp(1.0 - text.count("flaw")))


def flaws(text: str) -> list[float]:
    return [float(text.count("flaw")), 1.0, 0.0]


@dataclass
class Pooling:
    """Behaviour of the server; tests change it while it runs."""

    models: tuple[str, ...] = ("judge",)
    vllm: bool = True
    context: int | None = 2_048
    longest: int | None = None
    break_with: Any = None
    status: int | None = None
    hang: bool = False
    stuck: Callable[[], object] = bool
    released: threading.Event = field(default_factory=threading.Event)
    scores: Callable[[str], float] = sure
    vector: Callable[[str], list[float]] = flaws
    classes: Callable[[str], list[float]] | None = None
    keys: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)

    def texts(self) -> list[str]:
        return [text for body in self.seen for text in (body.get("input") or body["text_2"])]


@contextmanager
def pooling(script: Pooling | None = None) -> Iterator[tuple[str, Pooling]]:
    """Yield the address up to ``/v1`` and the script."""
    held = script or Pooling()
    server = ThreadingHTTPServer(("127.0.0.1", 0), PoolingHandler)
    server.script = held  # type: ignore[attr-defined]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", held
    finally:
        held.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class PoolingHandler(Handler):
    def do_POST(self) -> None:
        held: Pooling = self.server.script  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        held.paths.append(self.path)
        held.seen.append(body)
        if held.hang:
            held.stuck()
            held.released.wait(LONG_S)
            return
        if held.status is not None:
            self.reply(*error(held.status, "no", "InternalServerError"))
            return
        texts = body.get("input") or body["text_2"]
        if held.longest is not None and max(map(len, texts)) > held.longest:
            told = "This model's maximum context length is 512 tokens. However, you requested 900 tokens."
            self.reply(*error(400, told, "BadRequestError"))
            return
        rows = [self._row(place, text) for place, text in enumerate(texts)]
        usage = {"prompt_tokens": 7 * len(texts), "total_tokens": 7 * len(texts), "completion_tokens": 0}
        whole = {"id": "x", "object": "list", "created": 1, "model": "judge", "data": rows, "usage": usage}
        self.reply(200, whole if held.break_with is None else held.break_with)

    def _row(self, place: int, text: str) -> dict[str, Any]:
        held: Pooling = self.server.script  # type: ignore[attr-defined]
        p = held.scores(text)
        if self.path == "/classify":
            label = "LABEL_1" if p > 0.5 else "LABEL_0"
            probs = [1 - p, p] if held.classes is None else held.classes(text)
            return {"index": place, "label": label, "probs": probs, "num_classes": len(probs)}
        if self.path == "/score":
            return {"index": place, "object": "score", "score": p}
        return {"index": place, "object": "embedding", "embedding": held.vector(text)}
