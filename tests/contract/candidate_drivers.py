"""Agents of every integration behind one interface, for the contract suite."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import (
    TASK,
    AgentDriver,
    ContractRequest,
    ContractRun,
    RunFeature,
    ScriptedAnswer,
    SeatAnswer,
    list_invocations,
    supports,
)

_IDS = itertools.count()


@supports(RunFeature.CANCELLATION)
def loop(guard: Guard, played: ContractRun) -> None:
    """Run a hand-written agent loop."""
    with _loop(guard, played) as run:
        while not run.done:
            run.tools(run.model(_calls(played, "own")))
        played.answer = run.answer


@supports(RunFeature.CANCELLATION, RunFeature.SUB_AGENT)
def aloop(guard: Guard, played: ContractRun) -> None:
    """Run an asynchronous hand-written agent loop."""

    async def drive() -> None:
        models = {name: _acalls(played, name) for name in played.script}
        tools: list[Any] = [scout] if played.feature is RunFeature.SUB_AGENT else []
        with _loop(guard, played, models=models, tools=tools) as run:
            while not run.done:
                await run.atools(await run.amodel(models["own"]))
            played.answer = run.answer

    async def scout(where: str) -> str:
        """Let the sub-agent find a seat."""
        with guard.run(f"Find a seat: {where}", tools=[played.find]) as run:
            while not run.done:
                await run.atools(await run.amodel(_acalls(played, "scout")))
            run.raise_if_stopped()
            return str(run.answer)

    asyncio.run(drive())


def _loop(guard: Guard, played: ContractRun, *, models: Any = None, tools: Sequence[Any] = ()) -> Any:
    named = models or {name: _calls(played, name) for name in played.script}
    run = guard.run(TASK, tools=[played.book, played.find, *tools], models=named)
    played.sessions.append(run.session)
    return run


def _calls(played: ContractRun, name: str) -> Callable[..., Any]:
    def call(messages: list[dict[str, Any]], tools: Any, temperature: float | None = None) -> Any:
        return _message(played.next_answer(_asked(name, messages, temperature)))

    return call


def _acalls(played: ContractRun, name: str) -> Callable[..., Any]:
    async def call(messages: list[dict[str, Any]], tools: Any, temperature: float | None = None) -> Any:
        return _message(await played.next_answer_async(_asked(name, messages, temperature)))

    return call


def _asked(name: str, messages: list[dict[str, Any]], temperature: float | None = None) -> ContractRequest:
    by_role = {role: [str(m["content"]) for m in messages if m["role"] == role] for role in ("user", "tool")}
    return ContractRequest(name, by_role["user"], by_role["tool"], temperature)


def _message(answer: ScriptedAnswer) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    made = [
        {
            "id": f"c{next(_IDS)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in list_invocations(answer)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


_LANGCHAIN_FEATURES = (RunFeature.SUB_AGENT, RunFeature.STRUCTURED_OUTPUT, RunFeature.CANCELLATION)


@supports(*_LANGCHAIN_FEATURES, RunFeature.APPROVAL)
def langchain(guard: Guard, played: ContractRun) -> None:
    """Run a LangChain agent."""
    agent, given = _langchain(guard, played)
    with _raise_cancellation():
        result = agent.invoke(given, _LANGCHAIN_CONFIG)
    while "__interrupt__" in result:
        result = agent.invoke(_decide(played), _LANGCHAIN_CONFIG)
    played.answer = _format_answer(result)


@supports(*_LANGCHAIN_FEATURES)
def alangchain(guard: Guard, played: ContractRun) -> None:
    """Run an asynchronous LangChain agent."""
    agent, given = _langchain(guard, played)
    with _raise_cancellation():
        played.answer = _format_answer(asyncio.run(agent.ainvoke(given, _LANGCHAIN_CONFIG)))


@supports(*_LANGCHAIN_FEATURES, RunFeature.APPROVAL)
def langchain_streamed(guard: Guard, played: ContractRun) -> None:
    """Run a LangChain agent whose messages and states are streamed."""
    agent, given = _langchain(guard, played)
    while given is not None:
        modes = ["values", "messages"]
        with _raise_cancellation():
            parts = list(agent.stream(given, _LANGCHAIN_CONFIG, stream_mode=modes))
        result = [part for mode, part in parts if mode == "values"][-1]
        given = _decide(played) if "__interrupt__" in result else None
    played.answer = _format_answer(result)


@supports(*_LANGCHAIN_FEATURES, RunFeature.APPROVAL)
def langgraph(guard: Guard, played: ContractRun) -> None:
    """Run a guarded graph around a LangChain agent with the middleware in it."""
    from langgraph.checkpoint.memory import InMemorySaver

    agent, task = _langchain(guard, played, checkpointer=InMemorySaver())
    app = guard.langgraph(agent, on_run=played.sessions.append)
    with _raise_cancellation():
        result = app.invoke(task, _LANGCHAIN_CONFIG)
    while "__interrupt__" in result:
        result = app.invoke(_decide(played), _LANGCHAIN_CONFIG)
    played.answer = _format_answer(result)


@contextmanager
def _raise_cancellation() -> Iterator[None]:
    """Raise the cancellation itself, not the error that LangGraph makes of it."""
    from langgraph.errors import NodeCancelledError

    try:
        yield
    except NodeCancelledError:
        raise asyncio.CancelledError from None


_LANGCHAIN_CONFIG = {"configurable": {"thread_id": "1"}, "recursion_limit": 120}


def _langchain(guard: Guard, played: ContractRun, **options: Any) -> Any:
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langchain.agents.structured_output import ToolStrategy
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver

    models = {name: _chat_model(played, name) for name in played.script}
    guarded = guard.langchain(on_run=played.sessions.append, models=models)
    middleware, tools = [guarded, _shown_errors()], [tool(played.book), tool(played.find)]

    def scout(where: str) -> str:
        """Let the sub-agent find a seat."""
        inner = create_agent(_chat_model(played, "scout"), tools[1:2], middleware=[guard.langchain()])
        task = HumanMessage(f"Find a seat: {where}")
        return str(inner.invoke({"messages": [task]}, {"recursion_limit": 120})["messages"][-1].text)

    if played.feature is RunFeature.SUB_AGENT:
        tools.append(tool(scout))
    if played.feature is RunFeature.APPROVAL:
        middleware.append(HumanInTheLoopMiddleware(interrupt_on={"book": True}))
        options.setdefault("checkpointer", InMemorySaver())
    if played.feature is RunFeature.STRUCTURED_OUTPUT:
        options["response_format"] = ToolStrategy(SeatAnswer)
    agent = create_agent(models["own"], tools, middleware=middleware, **options)
    return agent, {"messages": [HumanMessage(TASK)]}


def _decide(played: ContractRun) -> Any:
    """Return the command that resumes a graph with the decision of the person."""
    from langgraph.types import Command

    decision = (
        {"type": "approve"} if played.approve() else {"type": "reject", "message": "The person refused."}
    )
    return Command(resume={"decisions": [decision]})


def _format_answer(result: Any) -> str:
    """Return the final answer of a graph; a structured answer as JSON."""
    structured = result.get("structured_response")
    return result["messages"][-1].text if structured is None else _format_output(structured)


def _format_output(output: Any) -> str:
    """Return an answer, as JSON if it is structured; a streamed run that was cancelled has none."""
    if output is None:
        return ""
    return output if isinstance(output, str) else str(output.model_dump_json())


def _shown_errors() -> Any:
    """Return the middleware with which LangChain users pass a tool's exception to the model as a message."""
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import ToolMessage

    def failed(request: Any, error: Exception) -> ToolMessage:
        return ToolMessage(f"Error: {error}", tool_call_id=request.tool_call["id"], status="error")

    class Shown(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            try:
                return handler(request)
            except ConnectionError as error:
                return failed(request, error)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            try:
                return await handler(request)
            except ConnectionError as error:
                return failed(request, error)

    return Shown()


def _chat_model(played: ContractRun, name: str) -> Any:
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Model(BaseChatModel):
        bound: Any = None

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **more: Any) -> Any:
            return Model(bound=more)

        def asked(self, messages: Any) -> ContractRequest:
            told = [m.text for m in messages if isinstance(m, HumanMessage)]
            results = [m.text for m in messages if isinstance(m, ToolMessage)]
            return ContractRequest(name, told, results, (self.bound or {}).get("temperature"))

        def _generate(self, messages: Any, *given: Any, **more: Any) -> ChatResult:
            return self.result(played.next_answer(self.asked(messages)))

        async def _agenerate(self, messages: Any, *given: Any, **more: Any) -> ChatResult:
            return self.result(await played.next_answer_async(self.asked(messages)))

        def result(self, answer: ScriptedAnswer) -> ChatResult:
            if isinstance(answer, str) and played.feature is RunFeature.STRUCTURED_OUTPUT:
                answer = (SeatAnswer.__name__, json.loads(answer))
            made = AIMessage(answer) if isinstance(answer, str) else _ai_call(answer)
            return ChatResult(generations=[ChatGeneration(message=made)])

    def _ai_call(answer: ScriptedAnswer) -> AIMessage:
        made = [{"id": f"c{next(_IDS)}", "name": n, "args": a} for n, a in list_invocations(answer)]
        return AIMessage("", tool_calls=made)

    return Model()


@supports(*RunFeature)
def pydantic_ai(guard: Guard, played: ContractRun) -> None:
    """Run a pydantic-ai agent."""
    from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool

    models = {name: _function_model(played, name) for name in played.script}
    guarded = guard.pydantic_ai(on_run=played.sessions.append, models=models)
    needs_approval = played.feature is RunFeature.APPROVAL
    tools: list[Any] = [Tool(played.book, requires_approval=needs_approval), played.find]
    options: dict[str, Any] = {"output_type": [str, DeferredToolRequests]} if needs_approval else {}

    async def scout(where: str) -> str:
        """Let the sub-agent find a seat."""
        model = _function_model(played, "scout")
        inner = Agent(model, tools=[played.find], capabilities=[guard.pydantic_ai()])
        return str((await inner.run(f"Find a seat: {where}")).output)

    if played.feature is RunFeature.SUB_AGENT:
        tools.append(scout)
    if played.feature is RunFeature.STRUCTURED_OUTPUT:
        options |= {"output_type": SeatAnswer, "retries": 3}
    agent: Any = Agent(models["own"], tools=tools, capabilities=[guarded], **options)

    async def drive() -> None:
        result = await agent.run(TASK)
        while isinstance(result.output, DeferredToolRequests):
            decisions = {call.tool_call_id: played.approve() for call in result.output.approvals}
            given: Any = DeferredToolResults(approvals=decisions)
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=given)
        played.answer = _format_output(result.output)

    asyncio.run(drive())


def _function_model(played: ContractRun, name: str) -> Any:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models.function import FunctionModel

    async def answer(messages: Any, info: Any) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        told = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
        results = [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]
        asked = ContractRequest(name, told, results, (info.model_settings or {}).get("temperature"))
        given = await played.next_answer_async(asked)
        if isinstance(given, str) and played.feature is RunFeature.STRUCTURED_OUTPUT:
            given = (info.output_tools[0].name, json.loads(given))
        if isinstance(given, str):
            return ModelResponse([TextPart(given)])
        return ModelResponse([ToolCallPart(*call) for call in list_invocations(given)])

    return FunctionModel(answer, model_name=name)


@supports(*RunFeature)
def openai_agents(guard: Guard, played: ContractRun) -> None:
    """Run an agent of the OpenAI Agents SDK."""
    agent, config = _agents(guard, played)
    more: Any = {"on_run": played.sessions.append, "run_config": config, "max_turns": 40}
    result = guard.openai_agents.run_sync(agent, TASK, **more)
    while result.interruptions:
        result = guard.openai_agents.run_sync(agent, _decide_calls(played, result), **more)
    played.answer = _format_output(result.final_output)


@supports(*RunFeature)
def openai_agents_streamed(guard: Guard, played: ContractRun) -> None:
    """Run a streamed agent of the OpenAI Agents SDK."""

    async def drive() -> None:
        agent, config = _agents(guard, played)
        more: Any = {"on_run": played.sessions.append, "run_config": config, "max_turns": 40}
        given: Any = TASK
        while given is not None:
            run = guard.openai_agents.run_streamed(agent, given, **more)
            async for _ in run.stream_events():
                pass
            given = _decide_calls(played, run) if run.interruptions else None
        played.answer = _format_output(run.final_output)

    asyncio.run(drive())


def _decide_calls(played: ContractRun, result: Any) -> Any:
    """Return the state of a run of the OpenAI Agents SDK with the decisions of the person."""
    state = result.to_state()
    for call in result.interruptions:
        (state.approve if played.approve() else state.reject)(call)
    return state


def _agents(guard: Guard, played: ContractRun) -> Any:
    from agents import Agent, AgentOutputSchema, ModelProvider, RunConfig, function_tool

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Any:
            return _sdk_model(played, model_name or "own")

    needs_approval = played.feature is RunFeature.APPROVAL
    tools = [
        function_tool(played.book, strict_mode=False, needs_approval=needs_approval),
        function_tool(played.find),
    ]
    config = RunConfig(tracing_disabled=True, model_provider=Provider())

    async def scout(where: str) -> str:
        """Let the sub-agent find a seat."""
        inner = Agent(name="scout", model="scout", tools=tools[1:2])
        task = f"Find a seat: {where}"
        return str((await guard.openai_agents.run(inner, task, run_config=config)).final_output)

    if played.feature is RunFeature.SUB_AGENT:
        tools.append(function_tool(scout))
    is_structured = played.feature is RunFeature.STRUCTURED_OUTPUT
    output_type = AgentOutputSchema(SeatAnswer, strict_json_schema=False) if is_structured else None
    return Agent(name="clerk", tools=tools, output_type=output_type), config


def _sdk_model(played: ContractRun, name: str) -> Any:
    from agents import Model
    from agents.items import ModelResponse
    from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
    from agents.usage import Usage

    class Scripted(Model):
        async def get_response(self, system: Any, input: Any, *more: Any, **options: Any) -> Any:
            output = await self.output(input, options.get("model_settings") or more[0])
            return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

        async def stream_response(
            self, system: Any, input: Any, settings: Any, *more: Any, **options: Any
        ) -> Any:
            inner = ScriptedModel([ModelStep(output=await self.output(input, settings))])
            async for event in inner.stream_response(system, input, settings, *more, **options):
                yield event

        async def output(self, items: Any, settings: Any) -> list[Any]:
            told = [str(item["content"]) for item in items if item.get("role") == "user"]
            results = [str(item["output"]) for item in items if "output" in item]
            answer = await played.next_answer_async(
                ContractRequest(name, told, results, getattr(settings, "temperature", None))
            )
            if isinstance(answer, str):
                return [assistant_message(answer, item_id=f"m{next(_IDS)}")]
            return [
                function_call(name, arguments, call_id=f"c{next(_IDS)}")
                for name, arguments in list_invocations(answer)
            ]

    return Scripted()


def chat(guard: Guard, played: ContractRun, *, stream: bool = False) -> None:
    """Run OpenAI's client with chat completions."""
    from openai import DefaultHttpxClient, OpenAI

    from tests.unit.integrations.openai_server import serving

    with serving(build_chat_server(played)) as server:
        transport = guard.transport(on_run=played.sessions.append)
        with OpenAI(
            base_url=server.url,
            api_key="k",
            max_retries=0,
            http_client=DefaultHttpxClient(transport=transport),
        ) as client:

            def ask(messages: list[Any]) -> Any:
                given: Any = {"model": "own", "messages": messages, "tools": _tools(wrapped=True)}
                if not stream:
                    return client.chat.completions.create(**given).choices[0].message
                with client.chat.completions.stream(**given) as events:
                    return events.get_final_completion().choices[0].message

            _client_loop(played, ask)


def chat_streamed(guard: Guard, played: ContractRun) -> None:
    """Run OpenAI's client with streamed chat completions."""
    chat(guard, played, stream=True)


def achat(guard: Guard, played: ContractRun) -> None:
    """Run OpenAI's asynchronous client with chat completions."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    from tests.unit.integrations.openai_server import serving

    with serving(build_chat_server(played)) as server, asyncio.Runner() as runner:
        transport = guard.atransport(on_run=played.sessions.append)
        http = DefaultAsyncHttpxClient(transport=transport)
        client = AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0, http_client=http)

        def ask(messages: list[Any]) -> Any:
            made: Any = client.chat.completions.create(
                model="own", messages=messages, tools=_tools(wrapped=True)
            )
            return runner.run(made).choices[0].message

        try:
            _client_loop(played, ask)
        finally:
            runner.run(client.close())


def chat_httpx(guard: Guard, played: ContractRun) -> None:
    """Run a client on httpx 0.28 with chat completions."""
    import httpx

    from tests.unit.integrations.openai_server import serving

    transport = guard.httpx_transport(on_run=played.sessions.append)
    with serving(build_chat_server(played)) as server, httpx.Client(transport=transport) as client:
        url = f"{server.url}/chat/completions"
        run_chat_agent(played, lambda body: client.post(url, json=body))


def achat_httpx(guard: Guard, played: ContractRun) -> None:
    """Run an asynchronous client on httpx 0.28 with chat completions."""
    import httpx

    from tests.unit.integrations.openai_server import serving

    transport = guard.ahttpx_transport(on_run=played.sessions.append)
    with serving(build_chat_server(played)) as server, asyncio.Runner() as runner:
        client = httpx.AsyncClient(transport=transport)
        url = f"{server.url}/chat/completions"
        try:
            run_chat_agent(played, lambda body: runner.run(client.post(url, json=body)))
        finally:
            runner.run(client.aclose())


def run_chat_agent(played: ContractRun, send: Callable[[dict[str, Any]], Any]) -> None:
    """Run an agent with chat completions; ``send`` posts the body of a request and returns the response."""
    _client_loop(played, lambda messages: _parse_message(send(_chat_body(messages))))


def _chat_body(messages: list[Any]) -> dict[str, Any]:
    sent = [one if isinstance(one, dict) else one.model_dump(exclude_none=True) for one in messages]
    return {"model": "own", "messages": sent, "tools": _tools(wrapped=True)}


def _parse_message(response: Any) -> Any:
    from openai.types.chat import ChatCompletion

    response.raise_for_status()
    return ChatCompletion.model_validate(response.json()).choices[0].message


def _client_loop(played: ContractRun, ask: Callable[[list[Any]], Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": TASK}]
    for _ in range(60):
        message = ask(messages)
        messages.append(message)
        if not message.tool_calls:
            played.answer = message.content
            return
        for call in message.tool_calls:
            text = _run(played, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    raise AssertionError("the loop did not end")


def smolagents(guard: Guard, played: ContractRun) -> None:
    """Run a ``ToolCallingAgent``."""
    from tests.contract import smolagents_drivers

    smolagents_drivers.run_agent(guard, played, stream_outputs=False)


def smolagents_stream(guard: Guard, played: ContractRun) -> None:
    """Run a ``ToolCallingAgent`` that streams the model's messages."""
    from tests.contract import smolagents_drivers

    smolagents_drivers.run_agent(guard, played, stream_outputs=True)


def build_chat_server(played: ContractRun) -> Callable[[Any], Any]:
    from tests.unit.integrations.openai_server import Raw, chunks, completion

    lock = threading.Lock()

    def say(body: Any) -> Any:
        with lock:
            try:
                answer = played.next_answer(_asked(body["model"], body["messages"], body.get("temperature")))
            except ConnectionError:
                return Raw(status=500)
        message = _message(answer)
        return chunks(message) if body.get("stream") else completion(message)

    return say


def responses(guard: Guard, played: ContractRun, *, stream: bool = False) -> None:
    """Run OpenAI's client with Responses, each of which names the previous response."""
    from openai import DefaultHttpxClient, OpenAI

    from tests.unit.integrations.openai_server import serving

    with serving(_responses_server(played)) as server:
        http = DefaultHttpxClient(transport=guard.transport(on_run=played.sessions.append))
        with OpenAI(base_url=server.url, api_key="k", max_retries=0, http_client=http) as client:
            items: list[Any] = [{"role": "user", "content": TASK}]
            before: dict[str, Any] = {}
            for _ in range(60):
                given: Any = {"model": "own", "input": items, "tools": _tools(wrapped=False), **before}
                if stream:
                    with client.responses.stream(**given) as events:
                        made = events.get_final_response()
                else:
                    made = client.responses.create(**given)
                calls = [item for item in made.output if item.type == "function_call"]
                if not calls:
                    played.answer = made.output_text
                    return
                before = {"previous_response_id": made.id}
                items = [
                    {
                        "type": "function_call_output",
                        "call_id": call.call_id,
                        "output": _run(played, call.name, call.arguments),
                    }
                    for call in calls
                ]
            raise AssertionError("the loop did not end")


def responses_streamed(guard: Guard, played: ContractRun) -> None:
    """Run OpenAI's client with streamed Responses."""
    responses(guard, played, stream=True)


def _responses_server(played: ContractRun) -> Callable[[Any], Any]:
    from tests.unit.integrations.openai_responses_server import called, events, response, said, whole
    from tests.unit.integrations.openai_server import Raw

    kept: dict[str, list[Any]] = {}

    def say(body: Any) -> Any:
        history = [*kept.get(body.get("previous_response_id") or "", []), *body["input"]]
        if not whole(history):
            return Raw(status=400, content=b'{"error":{"message":"a call without its output"}}')
        told = [str(item["content"]) for item in history if item.get("role") == "user"]
        results = [str(item["output"]) for item in history if "output" in item]
        try:
            answer = played.next_answer(
                ContractRequest(body["model"], told, results, body.get("temperature"))
            )
        except ConnectionError:
            return Raw(status=500)
        number = next(_IDS)
        id = f"i{number}"
        output = [called(name, f"i{next(_IDS)}", **given) for name, given in list_invocations(answer)]
        output = output or [said(answer, id)]
        kept[f"resp_{number}"] = [*history, *output]
        made = response(f"resp_{number}", output)
        return events(made) if body.get("stream") else made

    return say


def _run(played: ContractRun, name: str, arguments: str) -> str:
    try:
        return str(getattr(played, name)(**json.loads(arguments)))
    except (AttributeError, ConnectionError) as error:
        return f"Error: {error}"


def _tools(*, wrapped: bool) -> list[Any]:
    from agentguard.integrations.loop.tools import ToolFunctions

    def book(seat: int) -> str:
        """Book a seat."""
        return ""

    def find(where: str) -> str:
        """Find a seat."""
        return ""

    offered = ToolFunctions([book, find]).build_definitions(set())
    return offered if wrapped else [{"type": "function", "strict": False, **t["function"]} for t in offered]


DRIVERS: dict[str, AgentDriver] = {
    made.__name__: made
    for made in (
        loop,
        aloop,
        langchain,
        alangchain,
        langchain_streamed,
        langgraph,
        pydantic_ai,
        openai_agents,
        openai_agents_streamed,
        chat,
        achat,
        chat_streamed,
        chat_httpx,
        achat_httpx,
        responses,
        responses_streamed,
        smolagents,
        smolagents_stream,
    )
}
RUNS_TOOLS = [name for name in DRIVERS if not name.startswith(("chat", "achat", "responses"))]
"""Integrations that execute the tools and can retry a read."""

AWAITS = ["aloop", "alangchain", "pydantic_ai", "openai_agents"]
"""Integrations that request candidates concurrently."""
