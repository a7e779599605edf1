"""A real HTTP server on loopback that answers as vLLM 0.32 was observed to answer, with faults on demand.

The formats (fields, error bodies, status codes, the odd token ``<unk>`` at -9999) are those of a real server;
the
numbers are synthetic.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LETTERS = "ABCDEFGHIJKLMNOPQRST"
LONG_S = 60.0
_FIRST_ID = 236_776

Prefer = Callable[[str, str], float]
"""Function from prompt and label to the raw probability of the label."""


def evenly(prompt: str, label: str) -> float:
    return 0.02 * (1 + LETTERS.index(label) % 3)


@dataclass
class Script:
    """Behaviour of the server; tests change it while it runs.

    Attributes:
        meet: answers wait until this number of requests is present (or a minute has passed).
        hold: called before each answer.
        stuck: called by a fault that never ends, once the client waits for it.
        released: set at the end of the server; hanging answers wait for it.
    """

    prefer: Prefer = evenly
    text: str | None = None
    writes: str | None = None
    finish: str | None = None
    logprobs: bool = True
    ignores_label_ids: bool = False
    lists_zero: bool = False
    reasoning: str | None = None
    vllm: bool = True
    tokenize: bool = True
    context: int | None = 4_096
    models: tuple[str, ...] = ("judge",)
    longest: int | None = None
    faults: list[str] = field(default_factory=list)
    always: str | None = None
    meet: int = 1
    hold: Callable[[], object] = bool
    stuck: Callable[[], object] = bool
    released: threading.Event = field(default_factory=threading.Event)
    seen: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    clients: set[Any] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def gather(self) -> None:
        """Wait until the other required requests are present."""
        end = time.monotonic() + LONG_S
        while self.most_at_once < self.meet and time.monotonic() < end:
            time.sleep(0.005)

    def prompts(self) -> list[str]:
        return ["\n".join(m["content"] for m in body["messages"]) for body in self.seen]


@contextmanager
def serving(script: Script | None = None) -> Iterator[tuple[str, Script]]:
    """Yield the address up to ``/v1`` and the script."""
    with serving_on("127.0.0.1", 0, script) as served:
        yield served


@contextmanager
def serving_on(host: str, port: int, script: Script | None = None) -> Iterator[tuple[str, Script]]:
    """Run `serving` on a given address."""
    held = script or Script()
    server = ThreadingHTTPServer((host, port), Handler)
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


def closed_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def error(status: int, message: str, kind: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two segments: the second would wait for an ACK
    script: Script

    def setup(self) -> None:
        super().setup()
        self.script = self.server.script  # type: ignore[attr-defined]

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.script.paths.append(self.path)
        self.script.keys.append(self.headers.get("Authorization"))
        told = [_model(name, self.script) for name in self.script.models]
        self.reply(200, {"object": "list", "data": told})

    def do_POST(self) -> None:
        self.script.paths.append(self.path)
        self.script.keys.append(self.headers.get("Authorization"))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.script.clients.add(self.client_address)
            tokens = [_FIRST_ID + ord(character) - 65 for character in body["prompt"]]
            known = {"count": len(tokens), "tokens": tokens, "token_strs": None}
            self.reply(*((200, known) if self.script.tokenize else (404, {"detail": "Not Found"})))
            return
        with self.script.lock:
            self.script.seen.append(body)
            self.script.at_once += 1
            self.script.most_at_once = max(self.script.most_at_once, self.script.at_once)
            fault = self.script.faults.pop(0) if self.script.faults else self.script.always
        try:
            self.script.gather()
            self.script.hold()
            self.chat(body, fault)
        except OSError:  # the client may have disconnected
            pass
        finally:
            with self.script.lock:
                self.script.at_once -= 1

    def chat(self, body: Mapping[str, Any], fault: str | None) -> None:
        if fault == "hang":
            self.script.stuck()
            self.script.released.wait(LONG_S)
            return
        if fault == "drip":
            self.drip()
            return
        if fault == "truncated":
            self.truncated(_completion(body, self.script))
            return
        if fault == "reset":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault is not None:
            self.reply(*_FAULTS[fault])
            return
        if body["model"] not in self.script.models:
            told = f"The model `{body['model']}` does not exist. Valid aliases: judge."
            self.reply(*error(404, told, "NotFoundError"))
            return
        length = sum(len(m["content"]) for m in body["messages"])
        if self.script.longest is not None and length > self.script.longest:
            self.reply(*_FAULTS["overlong"])
            return
        self.reply(200, _completion(body, self.script))

    def reply(self, status: int, data: Any, headers: Mapping[str, str] | None = None) -> None:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def truncated(self, data: Any) -> None:
        raw = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw[: len(raw) // 2])
        self.close_connection = True

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        for sent in range(int(LONG_S / 0.05)):
            if sent == 3:
                self.script.stuck()
            self.wfile.write(b" ")
            self.wfile.flush()
            if self.script.released.wait(0.05):
                return


_LONG = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
    "prompt. (parameter=input_tokens, value=4097)"
)
_FAULTS: dict[str, tuple[Any, ...]] = {
    "500": error(500, "EngineCore encountered an issue.", "InternalServerError"),
    "503": error(503, "The queue is full.", "ServiceUnavailable"),
    "429": (*error(429, "Too many requests.", "RateLimitError"), {"Retry-After": "0.2"}),
    "429-late": (*error(429, "Too many requests.", "RateLimitError"), {"Retry-After": "30"}),
    "401": error(401, "Unauthorized", "AuthenticationError"),
    "overlong": error(400, _LONG, "BadRequestError"),
    "400": error(400, "Expecting value: line 1 column 1", "BadRequestError"),
    "html": (200, b"<html>a proxy says hello</html>"),
    "not-chat": (200, {"object": "list", "data": []}),
}


def _model(name: str, script: Script) -> dict[str, Any]:
    told = {"id": name, "object": "model", "created": 1_795_246_761, "owned_by": "openai"}
    if script.vllm:
        told |= {"owned_by": "vllm", "root": "/models/small", "parent": None, "max_model_len": script.context}
    return told


def _completion(body: Mapping[str, Any], script: Script) -> dict[str, Any]:
    prompt = "\n".join(message["content"] for message in body["messages"])
    text, logprobs = _said(body, prompt, script)
    message = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
    finish = script.finish or ("length" if body["max_tokens"] == 1 else "stop")
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish,
        "token_ids": None,
    }
    words = len(prompt.split())
    details = {"cached_tokens": words // 32 * 32, "created_cache_tokens": 0}
    usage = {"prompt_tokens": words, "total_tokens": words + 1, "completion_tokens": 1}
    return {
        "id": "chatcmpl-b341586c33c08d5e",
        "object": "chat.completion",
        "created": 1_795_246_761,
        "model": body["model"],
        "choices": [choice],
        "usage": usage | {"prompt_tokens_details": details},
    }


def _said(body: Mapping[str, Any], prompt: str, script: Script) -> tuple[str, Any]:
    """Return the answer under the request's mask; fields that an endpoint does not know are ignored."""
    shown = [line[0] for line in prompt.split("\n") if line[1:3] == ": " and line[0] in LETTERS]
    raw = {label: script.prefer(prompt, label) for label in shown} or {"A": 0.02}
    if script.reasoning is not None and body["max_tokens"] > 1 and not body.get("response_format"):
        return script.reasoning, {"content": _tokens(script.reasoning, raw)}
    if body.get("allowed_token_ids") and script.vllm and not script.ignores_label_ids:
        raw = {
            label: p for label, p in raw.items() if ord(label) - 65 + _FIRST_ID in body["allowed_token_ids"]
        }
    elif body.get("structured_outputs") and script.vllm:  # the rest after the mask
        total = sum(raw.values())
        raw = {label: p / total for label, p in raw.items()}
    best = max(raw, key=lambda label: raw[label])
    if script.writes is not None and body.get("response_format"):
        return script.writes, None
    if not (script.logprobs and body.get("logprobs")):
        return script.text if script.text is not None else best, None
    top = [_one(label, math.log(p)) for label, p in raw.items() if p > 0]
    if script.lists_zero:
        top += [_one(label, -9999.0) for label, p in raw.items() if p == 0]
    if script.ignores_label_ids and body.get("logprob_token_ids"):
        top = []
    elif not body.get("logprob_token_ids"):
        top = [*top, _one("The", -1.2), _one("<unk>", -9999.0)][-20:]
    held = {**_one(best, math.log(raw[best])), "top_logprobs": top}
    return script.text if script.text is not None else best, {"content": [held]}


def _tokens(text: str, raw: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return each word as a token; every place lists the labels."""
    top = [_one(label, math.log(p)) for label, p in raw.items()]
    return [{**_one(word, -0.1), "top_logprobs": top} for word in text.split()]


def _one(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
