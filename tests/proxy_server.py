"""``agentguard serve`` as a real process with a real port, and clients that send invalid requests."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Proxy:
    process: subprocess.Popen
    told: dict
    config: Path
    log: Path

    @property
    def port(self) -> int:
        return urlsplit(self.told["url"]).port

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def write(self, document: dict) -> None:
        """Write another configuration atomically, as an editor or a config map does."""
        beside = self.config.with_suffix(".new")
        beside.write_text(yaml.safe_dump(document))
        beside.replace(self.config)

    def said(self) -> str:
        """Return the log so far; log lines may follow their requests with a delay."""
        return self.log.read_text(errors="replace")

    def errors(self) -> str:
        """Kill the process and return its complete log."""
        if self.process.poll() is None:
            self.process.kill()
        return self.said()

    def connect(self, timeout: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(self, body: object = None, *, path: str = CHAT, method: str = "POST", **headers: str):
        """Send one request on a new connection; return (status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(
                method, path, encoded(body), {n.replace("_", "-"): v for n, v in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()


def encoded(body: object) -> bytes:
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def chat(*, stream: bool = False, text: str = "hello", **more: object) -> dict:
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}], **more}


def raw(body: object, *, path: str = CHAT, method: str = "POST", headers: str = "") -> bytes:
    data = encoded(body)
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


def read_until(client: socket.socket, mark: bytes) -> bytes:
    """Read until the data contains a given text or the connection ends."""
    got = b""
    while mark not in got:
        data = client.recv(65_536)
        if not data:
            break
        got += data
    return got


def read_answer(client: socket.socket) -> tuple[int, bytes]:
    """Return status and body of one answer with Content-Length, on a persistent connection."""
    got = read_until(client, b"\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
    while len(body) < length:
        body += client.recv(65_536)
    return int(head.split()[1]), body


def read_all(client: socket.socket) -> bytes:
    """Read until the connection ends in any way."""
    got = b""
    try:
        while data := client.recv(65_536):
            got += data
    except ConnectionResetError:
        pass
    return got


@contextmanager
def serving(folder: Path, document: dict, *arguments: str, **environment: str) -> Iterator[Proxy]:
    """Run the command with a configuration in ``folder``; yield it once it answers."""
    config, log = folder / "serve.yaml", folder / "serve.log"
    config.write_text(yaml.safe_dump({"listen": {"port": 0}, **document}))
    command = [sys.executable, "-c", "from agentguard.cli import main; main()", "serve", "--json"]
    # A file takes any number of lines; an unread pipe is full after a few hundred requests.
    with log.open("wb") as told:
        process = subprocess.Popen(
            [*command, "--config", str(config), *arguments],
            cwd=folder, stdout=subprocess.PIPE, stderr=told, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line, log.read_text(errors="replace")
        yield Proxy(process, json.loads(line), config, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdout.close()


def within(seconds: float, met) -> None:
    """Wait for a condition. Fail if it is not true in time."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.02)
