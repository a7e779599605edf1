"""Expected response to a request, derived from the request alone, so that a test can recognise a wrong one.

The same request has the same response on every backend, at every time and for every model name. Therefore a
known-answer probe works, votes agree, and a test can compute the expected response. The response to a request
with tools is a call of the first tool, unless the last message is a tool result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

ApiName = Literal["chat", "completions", "responses", "messages", "embeddings", "models", "other"]

_API_PATHS: tuple[tuple[str, ApiName], ...] = (
    ("/chat/completions", "chat"),
    ("/completions", "completions"),
    ("/responses", "responses"),
    ("/messages", "messages"),
    ("/embeddings", "embeddings"),
    ("/models", "models"),
)
WORDS = (
    "amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "joust", "knoll",
    "larch", "maple", "north", "ocean", "pearl", "quill", "river", "slate", "thyme", "umber", "vault",
    "wheat", "yield",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeResponse:
    """Content of a response, independent of the API.

    Attributes:
        text: text of the response; empty for a tool call.
        tool: name of the called tool; empty without a call.
        arguments: arguments of the call, as JSON.
        id: ID of the response; the ID of a tool call contains it.
        model: model name of the request.
    """

    text: str = ""
    tool: str = ""
    arguments: str = ""
    id: str = ""
    model: str = ""

    @property
    def content(self) -> str:
        """The text or the arguments: the concatenation of the streamed tokens."""
        return self.arguments if self.tool else self.text

    def tokens(self) -> list[str]:
        """Return the streamed tokens of the content."""
        if self.tool:
            return [self.arguments[i : i + 6] for i in range(0, len(self.arguments), 6)]
        words = self.text.split(" ")
        return [f"{word} " for word in words[:-1]] + words[-1:]

    def with_changed_digits(self) -> FakeResponse:
        """Return the reply with changed digits; it stays valid."""
        table = {ord(digit): str((int(digit) + 1) % 10) for digit in "0123456789"}
        return replace(self, text=self.text.translate(table), arguments=self.arguments.translate(table))


def detect_api(target: str) -> ApiName:
    """Return the API of a path, whatever its prefix."""
    path = target.partition("?")[0].rstrip("/")
    return next((name for end, name in _API_PATHS if path.endswith(end)), "other")


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the body of a request as an object; an empty one if the body is not a JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def build_expected_response(
    api: ApiName,
    request: Mapping[str, Any],
    *,
    word_count: int = 8,
    known_answers: Mapping[str, str] | None = None,
) -> FakeResponse:
    """Return the expected response to a request.

    Args:
        api: API of the request.
        request: body of the request.
        word_count: number of words in the text.
        known_answers: answers by question; the first question that occurs in the request decides.
    """
    turns, prefix = _extract_turns(request)
    conversation = json.dumps(turns, sort_keys=True, ensure_ascii=False, default=str)
    digest = hashlib.sha256(conversation.encode("utf-8", "surrogatepass")).hexdigest()
    identity = {"id": digest[:16], "model": str(request.get("model", ""))}
    tool = "" if api == "completions" else _select_tool(request)
    if tool:
        arguments = json.dumps({"key": digest[:12], "amount": int(digest[:6], 16)})
        return FakeResponse(tool=tool, arguments=arguments, **identity)
    text = next(
        (answer for question, answer in (known_answers or {}).items() if question in conversation), ""
    )
    text = text or generate_text(digest, word_count)
    return FakeResponse(text=text[len(prefix) :] if text.startswith(prefix) else text, **identity)


def generate_text(digest: str, word_count: int) -> str:
    """Return a text of ``word_count`` words, derived from a digest; its first word contains digits."""
    rest = (WORDS[int(digest[i % 60 : i % 60 + 4], 16) % len(WORDS)] for i in range(word_count - 1))
    return " ".join((f"answer-{int(digest[:8], 16)}", *rest))


def _extract_turns(request: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the messages, and the start of the response that the request contains (vLLM continuation)."""
    turns = [request.get(key) for key in ("system", "instructions", "messages", "input", "prompt")]
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return turns, ""
    last = messages[-1].get("content")
    if messages[-1].get("role") == "assistant" and isinstance(last, str):
        turns[2] = messages[:-1]
        return turns, last
    return turns, ""


def _select_tool(request: Mapping[str, Any]) -> str:
    """Return the name of the tool to call; empty for a request without tools or after a tool result."""
    tools = request.get("tools")
    if (
        not isinstance(tools, list)
        or not tools
        or not isinstance(tools[0], dict)
        or _ends_with_tool_result(request)
    ):
        return ""
    function = tools[0].get("function")
    return str((function if isinstance(function, dict) else tools[0]).get("name", ""))


def _ends_with_tool_result(request: Mapping[str, Any]) -> bool:
    turns = request.get("messages") or request.get("input")
    last = turns[-1] if isinstance(turns, list) and turns else None
    if not isinstance(last, dict):
        return False
    if last.get("role") == "tool" or last.get("type") == "function_call_output":
        return True
    content = last.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )


def build_foreign_request(api: ApiName) -> dict[str, Any]:
    """Return a request of another client; a faulty server may send its response to the wrong client."""
    turn = [{"role": "user", "content": "a question of somebody else"}]
    value: dict[str, Any] = {"messages": turn} if api in ("chat", "messages") else {"input": "somebody else"}
    return value | {"model": "a-model"}
