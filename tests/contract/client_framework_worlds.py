"""Agents of frameworks whose OpenAI client takes a guarded transport; each needs its framework installed.

LlamaIndex demands openai below 3, so it needs a separate environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import TASK, ContractRun, World
from tests.contract.candidate_worlds import build_chat_server
from tests.unit.integrations.openai_server import serving


def llama_index(guard: Guard, played: ContractRun) -> None:
    """Run an agent of LlamaIndex."""
    import httpx
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai import OpenAI

    async def drive(url: str) -> str:
        transport = guard.ahttpx_transport(on_run=played.sessions.append)
        async with httpx.AsyncClient(transport=transport) as client:
            model = OpenAI("gpt-4o", api_base=url, api_key="k", max_retries=0, async_http_client=client)
            agent = FunctionAgent(tools=[played.book, played.find], llm=model, streaming=False)
            return str(await agent.run(TASK, max_iterations=80))

    with serving(_build_server(played)) as server:
        played.answer = asyncio.run(drive(server.url))


def agent_framework(guard: Guard, played: ContractRun) -> None:
    """Run an agent of the Microsoft Agent Framework."""
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatCompletionClient
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    async def drive(url: str) -> str:
        transport = guard.atransport(on_run=played.sessions.append)
        http = DefaultAsyncHttpxClient(transport=transport)
        async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http) as client:
            model = OpenAIChatCompletionClient("gpt-4o", async_client=client)
            agent = Agent(model, tools=[played.book, played.find])
            return (await agent.run(TASK)).text

    with serving(_build_server(played)) as server:
        played.answer = asyncio.run(drive(server.url))


def _build_server(played: ContractRun) -> Callable[[Any], Any]:
    """Return the scripted chat server; it reads text parts as text, and each model as the agent's own."""
    answer = build_chat_server(played)

    def say(body: Any) -> Any:
        messages = [
            {**message, "content": _join_text(message.get("content"))} for message in body["messages"]
        ]
        return answer({**body, "model": "own", "messages": messages})

    return say


def _join_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


CLIENT_FRAMEWORK_WORLDS: dict[str, World] = {
    "llama_index.llms.openai": llama_index,
    "agent_framework.openai": agent_framework,
}
"""Worlds by the module of the framework."""
