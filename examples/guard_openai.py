"""OpenAI's client under the guard; the model is a scripted server on this machine: no network is needed.

The agent books a seat and ends with a wrong answer. The acceptance test rejects it, and the guard rolls back
to before the booking. The model requests the booking again. The guard returns the result of the first
booking, and the client sees the model's next answer.

    python examples/guard_openai.py
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openai import DefaultHttpxClient, OpenAI

from agentguard import Guard
from agentguard.recover import RecoveryPolicy
from agentguard.runtime import Session

BOOKED: list[int] = []
SESSIONS: list[Session] = []


def booking(id: str) -> dict[str, Any]:
    """Return a message of the model with a tool call."""
    function = {"name": "book", "arguments": '{"seat": 4}'}
    return {"content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


ANSWERS = iter(
    [booking("1"), {"content": "Have a nice trip!"}, booking("2"), {"content": "Seat 4 is booked."}]
)


class Model(BaseHTTPRequestHandler):
    """Server that returns the scripted answers in order."""

    def do_POST(self) -> None:
        """Answer a request."""
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", **next(ANSWERS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "chat", "object": "chat.completion", "created": 0, "model": "scripted"}
        content = json.dumps({**head, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Suppress the log on the terminal."""


def accept(run: Any) -> bool | str:
    """Accept the output if it names the seat."""
    return "seat 4" in run.steps[-1].content.lower() or "the answer does not say which seat was booked"


guard = Guard(recover=RecoveryPolicy(on_fail="restart"), accept=accept)


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    BOOKED.append(seat)
    return f"seat {seat} is yours"


def agent(client: OpenAI, task: str) -> str:
    """Run an agent loop as it is written without a guard."""
    parameters = {"type": "object", "properties": {"seat": {"type": "integer"}}}
    tools: Any = [{"type": "function", "function": {"name": "book", "parameters": parameters}}]
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        answer = client.chat.completions.create(model="scripted", messages=messages, tools=tools)
        message: Any = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            result = book(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def main() -> None:
    """Run the agent and print the guard's actions."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        http = DefaultHttpxClient(transport=guard.transport(on_run=SESSIONS.append))
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        with OpenAI(base_url=url, api_key="none", http_client=http) as client:
            print(agent(client, "Book seat 4."))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    print(f"booked: {BOOKED}")
    for recovery in SESSIONS[0].recoveries:
        print(f"{recovery.plan.strategy}: {recovery.plan.reason} ({recovery.outcome})")


if __name__ == "__main__":
    main()
