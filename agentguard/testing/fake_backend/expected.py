"""The right answer to a request: made from the request alone, so that anybody can tell it from a wrong one.

The same request has the same answer on every backend and at every time, whatever model it names: a canary has
a known answer, votes agree, and a test knows what must arrive. A request that offers tools is answered with a
call of the first one, unless the last message is a tool's result.
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
class FakeReply:
    """What an answer says, in no API's form.

    Attributes:
        text: of the answer; empty where a tool is called.
        tool: that is called; empty if none is.
        arguments: of the call, as JSON.
        id: of the answer; that of a tool call is made from it.
        model: as the request names it.
    """

    text: str = ""
    tool: str = ""
    arguments: str = ""
    id: str = ""
    model: str = ""

    @property
    def content(self) -> str:
        """The text, or the arguments: what the tokens of a stream add up to."""
        return self.arguments if self.tool else self.text

    def tokens(self) -> list[str]:
        """What is said, in the pieces in which it is streamed."""
        if self.tool:
            return [self.arguments[i : i + 6] for i in range(0, len(self.arguments), 6)]
        words = self.text.split(" ")
        return [f"{word} " for word in words[:-1]] + words[-1:]

    def with_changed_digits(self) -> FakeReply:
        """The same, with what is said changed, and still valid."""
        table = {ord(digit): str((int(digit) + 1) % 10) for digit in "0123456789"}
        return replace(self, text=self.text.translate(table), arguments=self.arguments.translate(table))


def detect_api(target: str) -> ApiName:
    """The API that a path belongs to, whatever stands before it."""
    path = target.partition("?")[0].rstrip("/")
    return next((name for end, name in _API_PATHS if path.endswith(end)), "other")


def parse_body(body: bytes) -> dict[str, Any]:
    """A request's body as an object; an empty one where it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def build_expected_reply(
    api: ApiName,
    request: Mapping[str, Any],
    *,
    word_count: int = 8,
    known_answers: Mapping[str, str] | None = None,
) -> FakeReply:
    """The right answer to a request.

    Args:
        api: of the request.
        asked: its body.
        words: in the text.
        known: answers by what they are asked; the first whose question occurs in the request is given.
    """
    turns, prefix = _extract_turns(request)
    asked_for = json.dumps(turns, sort_keys=True, ensure_ascii=False, default=str)
    digest = hashlib.sha256(asked_for.encode("utf-8", "surrogatepass")).hexdigest()
    named = {"id": digest[:16], "model": str(request.get("model", ""))}
    tool = "" if api == "completions" else _select_tool(request)
    if tool:
        arguments = json.dumps({"key": digest[:12], "amount": int(digest[:6], 16)})
        return FakeReply(tool=tool, arguments=arguments, **named)
    text = next((answer for question, answer in (known_answers or {}).items() if question in asked_for), "")
    text = text or generate_text(digest, word_count)
    return FakeReply(text=text[len(prefix) :] if text.startswith(prefix) else text, **named)


def generate_text(digest: str, word_count: int) -> str:
    """A text of so many words, made from a digest; its first word has digits, so that it can be flipped."""
    rest = (WORDS[int(digest[i % 60 : i % 60 + 4], 16) % len(WORDS)] for i in range(word_count - 1))
    return " ".join((f"answer-{int(digest[:8], 16)}", *rest))


def _extract_turns(request: Mapping[str, Any]) -> tuple[Any, str]:
    """What is asked, and the part of the answer that the request holds already (vLLM's continuation)."""
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
    """The tool that is called, under whatever name its API has it."""
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
    """A request of somebody else, whose answer is mixed up with this one's."""
    turn = [{"role": "user", "content": "a question of somebody else"}]
    value: dict[str, Any] = {"messages": turn} if api in ("chat", "messages") else {"input": "somebody else"}
    return value | {"model": "a-model"}
