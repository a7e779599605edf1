"""Program that refunds an order with a model and a tool. It has no code for agentguard.

agentguard chaos run examples/chaos_program.yaml --output chaos/
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "refund",
            "description": "Refund an order.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string"}, "amount": {"type": "integer"}},
            },
        },
    }
]


def call_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the next message of the model; try three times."""
    body = json.dumps({"model": "demo", "messages": messages, "tools": TOOLS}).encode()
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
    for attempt in range(3):
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                message: dict[str, Any] = json.load(response)["choices"][0]["message"]
                return message
        except (OSError, ValueError):
            time.sleep(0.01 * attempt)
    sys.exit("the model does not answer")


def refund(key: str, amount: int) -> str:
    """Refund an order."""
    return f"refund of {amount} for {key} is booked"


def main() -> None:
    """Refund an order and print the answer of the model."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Refund order 7."}]
    for _ in range(8):
        message = call_model(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            print(message["content"])
            return
        for call in message["tool_calls"]:
            result = refund(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    sys.exit("the model repeats its calls")


if __name__ == "__main__":
    main()
