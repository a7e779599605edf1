"""Agents of frameworks whose OpenAI client takes a guarded transport; each needs its framework installed.

LlamaIndex demands openai below 3, so it needs a separate environment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import (
    TASK,
    AgentDriver,
    ContractRequest,
    ContractRun,
    list_invocations,
)
from tests.contract.candidate_drivers import build_chat_server
from tests.unit.integrations.openai_server import serving

_IDS = itertools.count()


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


def google_adk(guard: Guard, played: ContractRun) -> None:
    """Run an agent of Google ADK with a scripted model."""
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig
    from google.adk.apps import App
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class ScriptedLlm(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            parts = [part for content in llm_request.contents for part in content.parts or ()]
            results = [one.function_response.response for one in parts if one.function_response]
            user = [c for c in llm_request.contents if c.role == "user"]
            texts = [part.text for content in user for part in content.parts or () if part.text]
            asked = ContractRequest(
                self.model,
                texts,
                [str(one.get("result", one)) for one in results],
                llm_request.config.temperature,
            )
            answer = await played.next_answer_async(asked)
            made = [
                types.Part.from_function_call(name=name, args=arguments)
                for name, arguments in list_invocations(answer)
            ]
            content = types.Content(role="model", parts=made or [types.Part(text=answer)])
            yield LlmResponse(content=content)

    async def drive() -> str:
        models = {name: ScriptedLlm(model=name) for name in played.script or ("own",)}
        agent = LlmAgent(name="clerk", model=models["own"], tools=[played.book, played.find])
        plugin = guard.google_adk(on_run=played.sessions.append, models=models)
        runner = InMemoryRunner(app=App(name="contract", root_agent=agent, plugins=[plugin]))
        session = await runner.session_service.create_session(app_name="contract", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=TASK)])
        said = ""
        async for event in runner.run_async(
            user_id="u", session_id=session.id, new_message=message, run_config=RunConfig(max_llm_calls=200)
        ):
            texts = [part.text for part in (event.content and event.content.parts) or () if part.text]
            said = "".join(texts) or said
        await runner.close()
        return said

    played.answer = asyncio.run(drive())


def crewai(guard: Guard, played: ContractRun) -> None:
    """Run an agent of CrewAI with a scripted LLM."""
    os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TESTING="true", OTEL_SDK_DISABLED="true")
    from crewai import Agent
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import tool
    from crewai.utilities import agent_utils
    from crewai.utilities.i18n import I18N_DEFAULT

    class ScriptedLLM(BaseLLM):
        def supports_function_calling(self) -> bool:
            return True

        def call(self, messages: Any, tools: Any = None, **options: Any) -> Any:
            texts = {
                role: [str(one["content"]).strip() for one in messages if one["role"] == role]
                for role in ("user", "tool")
            }
            asked = ContractRequest(self.model, texts["user"], texts["tool"], self.temperature)
            answer = played.next_answer(asked)
            return [
                {
                    "id": f"call-{next(_IDS)}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for name, arguments in list_invocations(answer)
            ] or answer

    # The scripts repeat a call more often than CrewAI permits.
    agent_utils.MAX_REPEATED_TOOL_CALLS = 100
    # The prompt is the task alone, without CrewAI's heading.
    I18N_DEFAULT._prompts["slices"]["native_task"] = "{input}"
    models = {name: ScriptedLLM(model=name) for name in played.script or ("own",)}
    llm = guard.crewai(models["own"], on_run=played.sessions.append, models=models)
    tools = [tool(played.book), tool(played.find)]
    agent = Agent(role="clerk", goal="seats", backstory="", llm=llm, tools=tools, max_iter=80, cache=False)
    played.answer = agent.kickoff(TASK).raw


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


CLIENT_FRAMEWORK_DRIVERS: dict[str, AgentDriver] = {
    "llama_index.llms.openai": llama_index,
    "agent_framework.openai": agent_framework,
    "google.adk": google_adk,
    "crewai": crewai,
}
"""Drivers by the module of the framework."""
