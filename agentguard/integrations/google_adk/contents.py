"""Conversion of ADK's requests and responses to the format of the chat API, and back.

ADK resends the history of a session with each request, as contents without call IDs. The conversion numbers
the calls, so that a call has the same ID in each request. A message that the guard does not change
is converted back to its original parts, with their thought signatures and files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from agentguard.intercept.chat_exchange import build_function_call, build_payload, read_message
from agentguard.intercept.conversation import Item
from agentguard.trajectory.model import Usage


class ContentHistory:
    """History of one request as chat messages.

    Args:
        contents: contents of the request.

    Attributes:
        messages: the messages in the format of the chat API.
    """

    def __init__(self, contents: Sequence[types.Content]) -> None:
        self.messages: list[Item] = []
        self._parts: dict[str, tuple[str | None, list[types.Part]]] = {}
        self._call_count = 0
        self._open_ids: dict[str, list[str]] = {}
        for content in contents:
            self._add_content(content)

    def build_contents(self, messages: Sequence[Item]) -> list[types.Content]:
        """Build the contents of messages; results and texts of one turn become one content."""
        contents: list[types.Content] = []
        results: list[types.Part] = []
        for message in messages:
            role, parts = self._parts.get(_encode(message)) or self._build_parts(message)
            if message["role"] == "tool":
                if not results:
                    contents.append(types.Content(role="user", parts=results))
                results += parts
                contents[-1] = types.Content(role=role, parts=list(results))
                continue
            results = []
            contents.append(types.Content(role=role, parts=parts))
        return contents

    def build_message(self, content: types.Content) -> Item:
        """Build the message of a response to the request."""
        calls = [part.function_call for part in content.parts or () if part.function_call is not None]
        message: Item = {"role": "assistant", "content": _join_text(content.parts)}
        if calls:
            message["tool_calls"] = [
                build_function_call(f"call-{self._call_count + place}", call.name or "", call.args or {})
                for place, call in enumerate(calls)
            ]
        return message

    def _add_content(self, content: types.Content) -> None:
        parts = content.parts or []
        if content.role == "model":
            message = self.build_message(content)
            for call in message.get("tool_calls", ()):
                self._open_ids.setdefault(call["function"]["name"], []).append(call["id"])
                self._call_count += 1
            self._add(message, "model", parts)
            return
        rest = [part for part in parts if part.function_response is None]
        for part in parts:
            if (function_response := part.function_response) is not None:
                self._add(self._build_result(function_response), content.role, [part])
        if rest:
            self._add({"role": "user", "content": _join_text(rest)}, content.role, rest)

    def _add(self, message: Item, role: str | None, parts: list[types.Part]) -> None:
        self.messages.append(message)
        self._parts[_encode(message)] = (role, parts)

    def _build_result(self, response: types.FunctionResponse) -> Item:
        open_ids = self._open_ids.get(response.name or "")
        id = open_ids.pop(0) if open_ids else f"call-unknown-{len(self.messages)}"
        return {"role": "tool", "tool_call_id": id, "content": _read_response(response.response)}

    def _build_parts(self, message: Item) -> tuple[str, list[types.Part]]:
        """Build the role and the parts of a message that the guard wrote or changed."""
        text = message.get("content") or ""
        if message["role"] == "assistant":
            return "model", build_response_parts(message)
        if message["role"] != "tool":
            return "user", [types.Part(text=text)]
        name = self._get_call_name(message["tool_call_id"])
        return "user", [types.Part.from_function_response(name=name, response={"result": text})]

    def _get_call_name(self, id: str) -> str:
        calls = (call for message in self.messages for call in message.get("tool_calls", ()))
        return next((call["function"]["name"] for call in calls if call["id"] == id), "")


def build_tool_definitions(config: types.GenerateContentConfig | None) -> list[dict[str, Any]]:
    """Build the definitions of the function tools of a request in the format of the chat API."""
    declarations = [
        function
        for tool in (config.tools if config is not None else None) or ()
        for function in getattr(tool, "function_declarations", None) or ()
    ]
    return [
        {
            "type": "function",
            "function": {
                "name": one.name,
                "description": one.description or "",
                "parameters": _build_schema(one),
            },
        }
        for one in declarations
    ]


def remove_tools(config: types.GenerateContentConfig, disabled: set[str]) -> types.GenerateContentConfig:
    """Return the configuration of a request without the disabled function tools."""
    tools: list[Any] = []
    for tool in config.tools or ():
        declarations = getattr(tool, "function_declarations", None)
        if declarations is None:
            tools.append(tool)
        elif enabled := [one for one in declarations if one.name not in disabled]:
            tools.append(tool.model_copy(update={"function_declarations": enabled}))
    return config.model_copy(update={"tools": tools})


def build_response_payload(history: ContentHistory, response: LlmResponse) -> dict[str, Any] | None:
    """Convert a response to the format of the chat API; return None if it is not complete."""
    content = response.content
    if content is None or not content.parts or response.error_code is not None or response.interrupted:
        return None
    metadata, usage = response.usage_metadata, None
    if metadata is not None:
        usage = Usage(
            prompt_tokens=metadata.prompt_token_count or 0,
            completion_tokens=metadata.candidates_token_count or 0,
        )
    return build_payload(history.build_message(content), usage=usage, model=response.model_version or "")


def build_response_parts(message: Mapping[str, Any]) -> list[types.Part]:
    """Build the parts of a response from its message."""
    parts = [types.Part(text=message["content"])] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(
            types.Part.from_function_call(name=function["name"], args=json.loads(function["arguments"]))
        )
    return parts


def build_response(payload: Mapping[str, Any]) -> LlmResponse:
    """Build a response that the guard wrote or changed."""
    return LlmResponse(content=types.Content(role="model", parts=build_response_parts(read_message(payload))))


def read_system_prompt(config: types.GenerateContentConfig | None) -> str:
    """Return the system instruction of a request; empty if it is not text."""
    system = config.system_instruction if config is not None else None
    return system if isinstance(system, str) else ""


def _build_schema(function: types.FunctionDeclaration) -> dict[str, Any]:
    if function.parameters_json_schema is not None:
        schema = function.parameters_json_schema
        return schema if isinstance(schema, dict) else {"type": "object"}
    if function.parameters is None:
        return {"type": "object", "properties": {}}
    json_schema: dict[str, Any] = function.parameters.json_schema.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    return json_schema


def _read_response(response: Mapping[str, Any] | None) -> str:
    """Return the text of a tool's response; ADK wraps results that are not mappings as ``result``."""
    if response is not None and set(response) == {"result"} and isinstance(response["result"], str):
        return response["result"]
    return json.dumps(response, default=str)


def _join_text(parts: Sequence[types.Part] | None) -> str:
    texts = (part.text for part in parts or () if part.text and not part.thought)
    return "\n".join(texts)


def _encode(message: Mapping[str, Any]) -> str:
    return json.dumps(message, sort_keys=True)
