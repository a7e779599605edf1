"""Branch of chat messages that can be truncated between turns, and conversion of messages to steps.

A turn is an assistant message with the tool messages for its calls. The branch adds and removes complete
turns, because providers reject a tool call without its result and a result without its call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentguard.detect.step_facts import canonicalize_json
from agentguard.errors import ConfigError
from agentguard.trajectory.formats.sdk import build_chat_messages, parse_chat_turn
from agentguard.trajectory.model import Step, ToolCall, Trajectory

Message = dict[str, Any]


class ChatBranch:
    """Current branch of a conversation in the chat format, with a slice of messages per step."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._step_ends: list[int] = []

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self._step_ends)

    def add_step(self, *messages: Message) -> None:
        """Add the messages of one step."""
        self.messages += messages
        self._step_ends.append(len(self.messages))

    def add_guard_message(self, text: str) -> None:
        """Add a message of the guard; a rollback removes it together with the step after it."""
        self.messages.append({"role": "user", "content": text})

    def replace_result(self, step: int, result_index: int, text: str) -> None:
        """Replace the text of tool result ``result_index`` of a step."""
        begin = self._step_ends[step - 1] if step else 0
        results = [i for i in range(begin, self._step_ends[step]) if self.messages[i].get("role") == "tool"]
        position = results[result_index]
        self.messages[position] = {**self.messages[position], "content": text}

    def truncate(self, to_step: int) -> None:
        """Remove the messages from step ``to_step`` on, and the guard messages directly before that step."""
        del self.messages[self._step_ends[to_step - 1] if to_step else 0 :]
        del self._step_ends[to_step:]


def build_step(message: Mapping[str, Any]) -> Step:
    """Convert a message to a step without an index. Raises FormatError if the message is malformed."""
    return parse_chat_turn([message])


def build_assistant_message(answer: Any) -> Message:
    """Build an assistant message from the return value of a model client.

    Args:
        answer: a message as a mapping, its text, or an object with ``model_dump`` (such as the message of the
            openai package). The first choice of a chat completion is used.

    Raises:
        ConfigError: the value has another type.
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
    """Return the assistant message with the text and calls of ``turn``, its repaired step."""
    repaired = {**message, "content": turn.content or message.get("content")}
    calls = [
        {
            **original_call,
            "function": {
                **original_call["function"],
                "name": call.name,
                "arguments": canonicalize_json(call.arguments)
                if call.raw_arguments is None
                else call.raw_arguments,
            },
        }
        for original_call, call in zip(message.get("tool_calls") or (), turn.tool_calls, strict=True)
    ]
    return {**repaired, "tool_calls": calls} if calls else repaired


def build_messages(step: Step) -> list[Message]:
    """Convert a step to its messages, without those of the guard."""
    extra = {key: value for key, value in step.extra.items() if key != "agentguard"}
    run = Trajectory(id="", format="openai_chat", task="", steps=(replace(step, extra=extra),))
    return build_chat_messages(run)


def build_tool_message(call: ToolCall, text: str) -> Message:
    """Build the tool message with the result of a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}
