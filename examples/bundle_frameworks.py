"""Record agents of five frameworks into bundles; the model is scripted, so no network is needed.

python examples/bundle_frameworks.py
agentguard replay langchain.agb --agent examples.bundle_frameworks:run_langchain
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
from agents import Agent as SdkAgent, OpenAIChatCompletionsModel, RunConfig, function_tool
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentguard import Guard
from agentguard.bundles import RunBinding, record_run, replay_bundle

guard = Guard()
TASK = "Book seat 4."
URL, MODEL, KEY = "https://model.example/v1", "scripted", "no-key"


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    return f"seat {seat} is yours"


def answer(request: httpx2.Request) -> httpx2.Response:
    """Answer a request in place of a model: book a seat, then report it."""
    function = {"name": "book", "arguments": json.dumps({"seat": 4})}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if json.loads(request.content)["messages"][-1]["role"] == "tool":
        message["content"] = "Seat 4 is booked."
    else:
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "chat", "object": "chat.completion", "created": 0, "model": MODEL}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return httpx2.Response(200, json={**head, "choices": [choice], "usage": usage})


# A program with a real model leaves this argument of the binding out.
SERVER = httpx2.MockTransport(answer)


def build_client(binding: RunBinding) -> AsyncOpenAI:
    """Return a client whose exchanges the binding handles."""
    http_client = httpx2.AsyncClient(transport=binding.bind_async_transport(SERVER))
    return AsyncOpenAI(base_url=URL, api_key=KEY, http_client=http_client)


def run_openai(binding: RunBinding) -> None:
    """Run a loop with OpenAI's client."""
    transport = guard.transport(inner=binding.bind_transport(SERVER), on_run=binding.add_session)
    client = OpenAI(base_url=URL, api_key=KEY, http_client=httpx2.Client(transport=transport))
    (tool,) = binding.bind_tools([book])
    messages: list[Any] = [{"role": "user", "content": TASK}]
    parameters = {"type": "object", "properties": {"seat": {"type": "integer"}}}
    definition: Any = {"type": "function", "function": {"name": "book", "parameters": parameters}}
    while True:
        given = client.chat.completions.create(model=MODEL, messages=messages, tools=[definition])
        messages.append(given.choices[0].message.model_dump(exclude_none=True))
        calls: list[Any] = list(given.choices[0].message.tool_calls or [])
        if not calls:
            return
        for call in calls:
            content = tool(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def build_langchain_agent(binding: RunBinding, **options: Any) -> Any:
    """Return an agent of LangChain."""
    http_client = httpx2.Client(transport=binding.bind_transport(SERVER))
    model = ChatOpenAI(base_url=URL, api_key=lambda: KEY, model=MODEL, http_client=http_client)
    return create_agent(model, binding.bind_tools([book]), **options)


def run_langchain(binding: RunBinding) -> None:
    """Run an agent of LangChain with the guard as its middleware."""
    agent = build_langchain_agent(binding, middleware=[guard.langchain(on_run=binding.add_session)])
    agent.invoke({"messages": [("user", TASK)]})


def run_langgraph(binding: RunBinding) -> None:
    """Run a compiled graph."""
    graph = build_langchain_agent(binding, checkpointer=InMemorySaver())
    app = guard.langgraph(graph, on_run=binding.add_session)
    app.invoke({"messages": [("user", TASK)]}, {"configurable": {"thread_id": "trip"}})


async def run_openai_agents(binding: RunBinding) -> None:
    """Run an agent of the OpenAI Agents SDK."""
    (tool,) = binding.bind_tools([book])
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=build_client(binding))
    agent: SdkAgent[Any] = SdkAgent(name="booker", model=model, tools=[function_tool(tool)])
    config = RunConfig(tracing_disabled=True)
    await guard.openai_agents.run(agent, TASK, on_run=binding.add_session, run_config=config)


async def run_pydantic_ai(binding: RunBinding) -> None:
    """Run an agent of pydantic-ai."""
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=build_client(binding)))
    capability = guard.pydantic_ai(on_run=binding.add_session)
    await Agent(model, tools=binding.bind_tools([book]), capabilities=[capability]).run(TASK)


AGENTS = {
    "openai": run_openai,
    "langchain": run_langchain,
    "langgraph": run_langgraph,
    "openai_agents": run_openai_agents,
    "pydantic_ai": run_pydantic_ai,
}


def main() -> None:
    """Record and replay each agent and print whether both runs are equal."""
    for name, agent in AGENTS.items():
        result = replay_bundle(record_run(agent, f"{name}.agb", guard=guard), agent)
        print(f"{name}: steps: {len(result.trajectory.steps)}, equal: {result.is_equal}")


if __name__ == "__main__":
    main()
