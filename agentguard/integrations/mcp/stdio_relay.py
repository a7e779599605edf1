"""Relay between a client on standard input and output and an MCP server in a child process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from agentguard.errors import ConfigError
from agentguard.integrations.mcp.tool_guard import McpToolGuard

_CHUNK_BYTES = 65_536
_EXIT_TIMEOUT_S = 5.0


class _LineWriter:
    """Writer of whole lines to a file descriptor; thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()

    def write(self, line: bytes) -> bool:
        """Write a line; return False if the reader has closed the pipe."""
        rest = memoryview(line)
        with self._lock:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except (BrokenPipeError, OSError):
                    return False
        return True


def run_stdio_relay(
    command: Sequence[str], tool_guard: McpToolGuard, *, input_fd: int = 0, output_fd: int = 1
) -> int:
    """Start a server and relay messages until the server or the client closes its output.

    If the client closes its output, the relay closes the server's input, as the protocol demands. If the
    server does not exit within 5 s, the relay terminates it, and after further 5 s kills it.

    Args:
        command: command and arguments of the server. Its standard error is that of this process.
        tool_guard: guard of the connection; the relay closes it.
        input_fd: file descriptor from which the client's messages are read.
        output_fd: file descriptor to which messages for the client are written.

    Returns:
        Exit status of the server; 128 plus the number of the signal that ended it.

    Raises:
        ConfigError: the command cannot be started.
    """
    try:
        server = subprocess.Popen(  # noqa: S603  the command of the user
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
    except OSError as error:
        raise ConfigError(f"mcp: {command[0]!r} cannot be started: {error.strerror or error}") from error
    assert server.stdin is not None
    assert server.stdout is not None

    def terminate(number: int, frame: FrameType | None) -> None:
        del number, frame
        server.terminate()

    previous = signal.signal(signal.SIGTERM, terminate)
    client, output = _LineWriter(output_fd), server.stdout.fileno()
    reader = threading.Thread(target=_relay_client, args=(server, tool_guard, input_fd, client), daemon=True)
    try:
        reader.start()
        for line in iter_lines(output):
            if not client.write(tool_guard.receive_from_server(line)):
                break
        status = _stop_server(server)
    finally:
        signal.signal(signal.SIGTERM, previous)
        server.stdout.close()
        tool_guard.close()
    return status if status >= 0 else 128 - status


def iter_lines(descriptor: int) -> Iterator[bytes]:
    """Yield the lines of a file descriptor as soon as they are complete; the last may lack its line feed."""
    rest = bytearray()
    while chunk := _read_chunk(descriptor):
        start = len(rest)
        rest += chunk
        while (end := rest.find(b"\n", start)) >= 0:
            yield bytes(rest[: end + 1])
            del rest[: end + 1]
            start = 0
    if rest:
        yield bytes(rest)


def _read_chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError:  # the other end has reset the connection
        return b""


def _relay_client(
    server: subprocess.Popen[bytes], tool_guard: McpToolGuard, input_fd: int, client: _LineWriter
) -> None:
    """Relay the client's messages; at their end, close the server's input and wait for its exit."""
    assert server.stdin is not None
    to_server = _LineWriter(server.stdin.fileno())
    for line in iter_lines(input_fd):
        relayed = tool_guard.receive_from_client(line)
        if relayed.to_client is not None:
            client.write(relayed.to_client)
        if relayed.to_server is not None and not to_server.write(relayed.to_server):
            return
    server.stdin.close()
    _stop_server(server)


def _stop_server(server: subprocess.Popen[bytes]) -> int:
    """Wait for the exit of the server; terminate it after the timeout, then kill it."""
    for end in (server.terminate, server.kill):
        try:
            return server.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            end()
    return server.wait()
