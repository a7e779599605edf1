"""A conversation in OpenAI's chat shape that can be cut between turns, and what its messages are as steps.

A turn is an assistant message and all tool messages that answer it. They are added and cut together: a tool
call without its answer, or an answer without its call, is refused by providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentguard.detect.step_facts import canonicalize_json
from agentguard.errors import ConfigError
from agentguard.trajectory.formats.sdk import build_chat_messages, parse_chat
from agentguard.trajectory.model import Step, ToolCall, Trajectory

Message = dict[str, Any]


class ChatBranch:
    """The live line of a conversation, a slice of messages a step."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._step_ends: list[int] = []

    def __len__(self) -> int:
        """Steps on the line."""
        return len(self._step_ends)

    def add_step(self, *messages: Message) -> None:
        """Add the messages of one step."""
        self.messages += messages
        self._step_ends.append(len(self.messages))

    def add_guard_message(self, text: str) -> None:
        """Add a message of the guard; it belongs to no step, and goes with the step that comes after it."""
        self.messages.append({"role": "user", "content": text})

    def replace_result(self, step: int, result_index: int, text: str) -> None:
        """Put another text in place of what a step's tools returned, the ``place``-th of its results."""
        begin = self._step_ends[step - 1] if step else 0
        results = [i for i in range(begin, self._step_ends[step]) if self.messages[i].get("role") == "tool"]
        at = results[result_index]
        self.messages[at] = {**self.messages[at], "content": text}

    def truncate(self, to_step: int) -> None:
        """Drop the messages from step ``to_step`` on, and what the guard said since the step before it."""
        del self.messages[self._step_ends[to_step - 1] if to_step else 0 :]
        del self._step_ends[to_step:]


def build_step(message: Mapping[str, Any]) -> Step:
    """One message as a step; its index is set when it is committed. Raises FormatError if it is malformed."""
    return parse_chat([dict(message)]).steps[0]


def build_assistant_message(answer: Any) -> Message:
    """An assistant message from what a model client returned.

    Args:
        answer: a message as a mapping, the text alone, an object with ``model_dump`` (the openai package's
            message), or a whole chat completion, whose first choice is taken.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    if hasattr(answer, "choices"):
        answer = answer.choices[0].message
    if hasattr(answer, "model_dump"):
        answer = answer.model_dump(exclude_none=True)
    if isinstance(answer, Mapping) and isinstance(answer.get("choices"), Sequence) and answer["choices"]:
        answer = answer["choices"][0].get("message")
    if not isinstance(answer, Mapping):
        raise ConfigError(
            f"the model function returned {type(answer).__name__}; expected an assistant message, its text, "
            "or a chat completion"
        )
    return {"role": "assistant", "content": None, **answer}


def apply_repaired_turn(message: Message, turn: Step) -> Message:
    """An assistant message with the text and calls of ``turn``, which was made of it and repaired since."""
    made = {**message, "content": turn.content or message.get("content")}
    calls = [
        {
            **given,
            "function": {
                **given["function"],
                "name": call.name,
                "arguments": canonicalize_json(call.arguments)
                if call.raw_arguments is None
                else call.raw_arguments,
            },
        }
        for given, call in zip(message.get("tool_calls") or (), turn.tool_calls, strict=True)
    ]
    return {**made, "tool_calls": calls} if calls else made


def build_messages(step: Step) -> list[Message]:
    """The messages of a step that `build_step` made, put back together; what the guard said is left out."""
    extra = {key: value for key, value in step.extra.items() if key != "agentguard"}
    run = Trajectory(id="", format="openai_chat", task="", steps=(replace(step, extra=extra),))
    return build_chat_messages(run)


def build_tool_message(call: ToolCall, text: str) -> Message:
    """The answer to a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}
