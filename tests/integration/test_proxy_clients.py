"""The proxy with the real SDKs as clients; only their base URL changes.

The backend is a scripted model on loopback. Where the difference matters, every SDK sends its request twice:
through the guard and through a pure gateway, which must forward the exact bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from langchain_openai import ChatOpenAI

from agentguard.store import Store
from agentguard.store.read.pagination import Page
from tests.proxy_server import Proxy, serving, within
from tests.unit.integrations import (
    anthropic_server as claude,
    openai_responses_server as responses,
    openai_server as chat,
)
from tests.unit.integrations.openai_server import Body, Raw

pytestmark = pytest.mark.slow

POLICY: Body = {
    "localizer": {"name": "first_finding"},
    "recover": {"on_fail": ["rollback"]},
    "tools": {"book": {"effect": "write"}, "find": {"effect": "read"}},
}
TASK: Any = {"role": "user", "content": "Book seat 4."}
SCHEMA: Body = {"type": "object", "properties": {"where": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": SCHEMA}}
    for name in ("book", "find")
]


class Model:
    """A model server with answers from the test."""

    def __init__(self) -> None:
        self.say: Callable[[Body], Any] = lambda body: chat.completion(chat.say("ok"))
        self.server = chat.Server()

    def gives(self, answers: Iterable[Any]) -> None:
        made = iter(answers)
        self.say = lambda body: next(made)
        for kept in (self.server.bodies, self.server.raw, self.server.headers, self.server.paths):
            kept.clear()


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    made = Model()
    with chat.serving(lambda body: made.say(body)) as server:
        made.server = server
        yield made


def document(model: Model, **more: Any) -> Body:
    pipeline = {"retry": {"max_attempts": 1}, "hedge": "off"}
    replicas = [{"name": "a", "url": model.server.url}]
    return {"backends": {"replicas": replicas, "health": "off", "pipeline": pipeline}, **more}


@pytest.fixture(scope="module")
def guarded(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("guarded")
    store = {"store": str(folder / "runs.db")}
    with serving(folder, document(model, guard={"policy": POLICY}, capture=store)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def plain(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with serving(tmp_path_factory.mktemp("plain"), document(model)) as proxy:
        yield proxy


@pytest.fixture
def client(guarded: Proxy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base(guarded), api_key="k", max_retries=0) as made:
        yield made


def base(proxy: Proxy) -> str:
    return f"http://127.0.0.1:{proxy.port}/v1"


def finds(count: int) -> list[Body]:
    return [chat.call("find", f"f{i}", where="aisle") for i in range(count)]


LOOP = [*finds(3), chat.call("book", "b", where="4"), chat.say("Seat 4 is booked.")]


def calls_in(body: Body) -> list[str]:
    return [one["id"] for message in body["messages"] for one in message.get("tool_calls") or ()]


def streamed(message: Body) -> list[bytes]:
    return chat.chunks(message)


# -- the openai package


@pytest.mark.parametrize("stream", [False, True])
def test_looping_openai_agent_is_rolled_back(
    client: openai.OpenAI, model: Model, guarded: Proxy, stream: bool
) -> None:
    model.gives(streamed(m) if stream else chat.completion(m) for m in LOOP)
    messages: list[Any] = [TASK]
    heads = []
    for _ in LOOP:
        if stream:
            with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as flow:
                message = flow.get_final_completion().choices[0].message
        else:
            raw = client.chat.completions.with_raw_response.create(model="m", messages=messages, tools=TOOLS)
            heads.append(raw.headers)
            message = raw.parse().choices[0].message
        messages.append(message)
        called = [one.id for one in message.tool_calls or ()]
        messages += [{"role": "tool", "tool_call_id": id, "content": "nothing found"} for id in called]
    assert (message.content or "").strip() == "Seat 4 is booked."
    assert calls_in(model.server.bodies[-1]) == ["f0", "b"]
    assert "[guard]" in json.dumps(model.server.bodies[-1])
    if not stream:
        assert "rollback@" in heads[3]["agentguard-recoveries"]
        run = heads[0]["agentguard-run"]
        status, _, told = guarded.ask(path=f"/agentguard/v1/sessions/{run}", method="GET")
        assert status == 200
        assert json.loads(told)["recoveries"][0]["strategy"] == "rollback"
        store = Store.open(guarded.config.parent / "runs.db")
        within(20, lambda: bool(store.list_diagnoses(run)))
        kept = store.get_trajectory(run)
        store.close()
        assert kept is not None
        assert [call.id for step in kept.steps for call in step.tool_calls] == ["f0", "b"]
        assert len(kept.branches) == 1


def test_refused_call_is_hidden_from_asynchronous_client(guarded: Proxy, model: Model) -> None:
    fly = {**chat.say("I try"), **chat.call("fly", "x")}
    model.gives([streamed(fly), streamed(LOOP[3]), chat.completion(fly), chat.completion(LOOP[3])])

    async def ask() -> tuple[list[Any], Any]:
        async with openai.AsyncOpenAI(base_url=base(guarded), api_key="k", max_retries=0) as client:
            flow = await client.chat.completions.create(model="m", messages=[TASK], tools=TOOLS, stream=True)
            chunks = [chunk async for chunk in flow]
            return chunks, await client.chat.completions.create(model="m", messages=[TASK], tools=TOOLS)

    chunks, whole = asyncio.run(ask())
    names = [c.function.name for k in chunks for c in k.choices[0].delta.tool_calls or () if c.function.name]
    assert names == ["book"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert [call.function.name for call in whole.choices[0].message.tool_calls] == ["book"]


@pytest.mark.parametrize("stream", [False, True])
def test_responses_are_judged_and_continued_by_id(client: openai.OpenAI, model: Model, stream: bool) -> None:
    tools: list[Any] = [{"type": "function", "name": "book", "parameters": SCHEMA, "strict": False}]
    outputs = [[responses.called("fly", "x")], [responses.called("book", "b")], [responses.said("Booked.")]]
    script = responses.Model(outputs, stream=stream)
    model.gives([])
    model.say = script

    def ask(**more: Any) -> Any:
        if not stream:
            return client.responses.create(model="m", tools=tools, **more)
        with client.responses.stream(model="m", tools=tools, **more) as flow:
            return flow.get_final_response()

    first = ask(input="Book seat 4.")
    assert [one.name for one in first.output if one.type == "function_call"] == ["book"]
    result = {"type": "function_call_output", "call_id": "b", "output": "done"}
    last = ask(input=[result], previous_response_id=first.id)
    assert last.output_text == "Booked."
    assert len(script.seen) == 3


def test_other_openai_apis_pass_through(client: openai.OpenAI, model: Model) -> None:
    text = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "x_unknown": 1}
    text["choices"] = [{"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}]
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}
    vectors = {
        "object": "list",
        "model": "m",
        "data": [vector],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    model.gives([text, vectors])
    assert client.completions.create(model="m", prompt="hi").choices[0].text == "hello"
    got = client.embeddings.create(model="m", input="hi", encoding_format="float")
    assert got.data[0].embedding == [0.5, 1.0]
    assert list(client.models.list()) == []
    assert model.server.paths == ["/v1/completions", "/v1/embeddings", "/v1/models"]


def test_endpoint_errors_are_forwarded_unchanged(client: openai.OpenAI, model: Model) -> None:
    model.gives([Raw(status=422, content=b'{"error":{"message":"no","type":"t","code":"c"}}')])
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(model="m", messages=[TASK], tools=TOOLS)
    assert caught.value.code == "c"


# -- the anthropic package


@pytest.mark.parametrize("stream", [False, True])
def test_looping_anthropic_agent_is_rolled_back(guarded: Proxy, model: Model, stream: bool) -> None:
    wanted = [claude.message(claude.uses("find", f"t{i}", where="aisle")) for i in range(3)]
    wanted += [claude.message(claude.thinks("So."), claude.uses("book", "b", where="4"))]
    wanted += [claude.message(claude.says("Seat 4 is booked."))]
    model.gives(claude.events(one) if stream else one for one in wanted)
    tools: list[Any] = [{"name": name, "input_schema": SCHEMA} for name in ("book", "find")]
    messages: list[Any] = [TASK]
    with anthropic.Anthropic(base_url=base(guarded)[:-3], api_key="k", max_retries=0) as client:
        for _ in wanted:
            asked: Body = {"model": "c", "max_tokens": 99, "messages": messages, "tools": tools}
            if stream:
                with client.messages.stream(**asked) as flow:
                    got = flow.get_final_message()
            else:
                got = client.messages.create(**asked)
            messages.append({"role": "assistant", "content": got.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "nothing found"}
                for block in got.content
                if block.type == "tool_use"
            ]
            if results:
                messages.append({"role": "user", "content": results})
    assert got.content[-1].text == "Seat 4 is booked."
    last = json.dumps(model.server.bodies[-1])
    assert [id for id in ("t0", "t1", "t2", "b") if f'"{id}"' in last] == ["t0", "b"]
    assert "c2lnbmVk" in last, "thinking stays signed"


def test_refused_call_is_hidden_in_anthropic_stream(guarded: Proxy, model: Model) -> None:
    fly = claude.message(claude.says("I try"), claude.uses("fly", "x"))
    model.gives([claude.events(fly), claude.events(claude.message(claude.says("I can not.")))])
    tools: list[Any] = [{"name": "book", "input_schema": SCHEMA}]
    asked: Body = {"model": "c", "max_tokens": 9, "messages": [TASK], "tools": tools}
    with (
        anthropic.Anthropic(base_url=base(guarded)[:-3], api_key="k", max_retries=0) as client,
        client.messages.stream(**asked) as flow,
    ):
        got = flow.get_final_message()
    assert [block.type for block in got.content] == ["text", "text"]
    assert got.stop_reason == "end_turn"


# -- LangChain


@pytest.mark.parametrize("stream", [False, True])
def test_looping_langchain_agent_is_rolled_back(guarded: Proxy, model: Model, stream: bool) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    seen: list[str] = []

    @tool
    def find(where: str) -> str:
        """Find a seat."""
        seen.append(where)
        return "nothing found"

    @tool
    def book(where: str) -> str:
        """Book a seat."""
        seen.append(f"booked {where}")
        return "yours"

    model.gives(streamed(one) if stream else chat.completion(one) for one in LOOP)
    llm = ChatOpenAI(model="m", base_url=base(guarded), api_key="k", max_retries=0, streaming=stream)
    agent = create_agent(llm, tools=[find, book])
    last = agent.invoke({"messages": [TASK]})["messages"][-1]
    assert last.content.strip() == "Seat 4 is booked."
    assert seen == ["aisle", "aisle", "aisle", "booked 4"]
    assert calls_in(model.server.bodies[-1]) == ["f0", "b"]


# -- bytes


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("which", ["guarded", "plain"])
def test_exchanged_bytes_are_unchanged(model: Model, request: Any, which: str, stream: bool) -> None:
    proxy: Proxy = request.getfixturevalue(which)
    answer = b'{ "id":"x", "choices" : [{"index":0,"finish_reason":"stop","message":{"role":"assistant",\n'
    answer += b'"content":"ok","x":1e3}}], "big": 123456789012345678901234567890}'
    pieces = [b": hello\r\n\r\n", *chat.chunks(chat.call("find", "f", where="x"), usage=True)]
    model.gives([pieces if stream else Raw(content=answer)])
    body = json.dumps(
        {"model": "m", "messages": [TASK], "tools": TOOLS, "stream": stream, "x_new": [1.50, None]}, indent=1
    ).encode()
    got = httpx2.post(f"{base(proxy)}/chat/completions", content=body, timeout=60)
    assert got.content == (b"".join(pieces) if stream else answer)
    assert model.server.raw == [body]
    assert not any(name.startswith("agentguard") for name in model.server.headers[0])


def test_pure_gateway_does_not_guard(plain: Proxy, model: Model) -> None:
    model.gives([chat.completion(chat.call("fly", "x"))])
    with openai.OpenAI(base_url=base(plain), api_key="k", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=[TASK], tools=TOOLS)
    assert "agentguard-run" not in raw.headers
    assert raw.parse().choices[0].message.tool_calls[0].function.name == "fly"


def test_unguarded_exchange_is_captured(guarded: Proxy, model: Model) -> None:
    model.gives([chat.completion(chat.say("Hello."))])
    with openai.OpenAI(base_url=base(guarded), api_key="k", max_retries=0) as client:
        client.chat.completions.create(
            model="m", messages=[TASK], extra_headers={"agentguard-run": "small-talk"}
        )
    store = Store.open(Path(guarded.config.parent) / "runs.db")
    within(20, lambda: store.get_trajectory("small-talk-unguarded") is not None)
    store.close()


def test_rolled_back_run_continues_at_another_proxy(model: Model, tmp_path: Path) -> None:
    """The second proxy does not show a turn that the first one rolled back: they share a database."""
    shared = {"store": str(tmp_path / "shared.db"), "lookup_timeout_s": 5}
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    made = document(model, guard={"policy": POLICY}, cluster=shared)
    last = chat.call("find", "f9", where="there")
    model.gives(chat.completion(one) for one in [*LOOP[:4], last, chat.say("Done.")])
    messages: list[Any] = [TASK]
    with serving(folders[0], made) as one, serving(folders[1], made) as two:
        for proxy in (one, one, one, one, two, two):
            if proxy is two:
                within(30, lambda: told_all(one))
            with openai.OpenAI(base_url=base(proxy), api_key="k", max_retries=0) as client:
                message = (
                    client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
                    .choices[0]
                    .message
                )
            messages.append(message)
            called = [call.id for call in message.tool_calls or ()]
            messages += [{"role": "tool", "tool_call_id": id, "content": "nothing found"} for id in called]
    assert message.content == "Done."
    assert calls_in(model.server.bodies[3]) == ["f0"]
    assert calls_in(model.server.bodies[4]) == ["f0", "b"]
    assert calls_in(model.server.bodies[5]) == ["f0", "b", "f9"]


def told_all(proxy: Proxy) -> bool:
    """Return whether a proxy has written all shared state to the database, which it does asynchronously."""
    shared = json.loads(proxy.ask(path="/status", method="GET")[2])["workers"][0]["cluster"]
    return bool(shared["ok"] and not shared["waiting"])


def test_several_workers_share_one_collector(model: Model, tmp_path: Path) -> None:
    made = document(model, guard={"policy": POLICY}, capture={"store": str(tmp_path / "runs.db")})
    model.say = lambda body: chat.completion(chat.say("ok"))
    names = [f"r{i}" for i in range(24)]
    with serving(tmp_path, {**made, "listen": {"port": 0, "workers": 2}}) as proxy:
        plain = {"model": "m", "messages": [TASK]}
        for name in names:
            proxy.ask(plain, Agentguard_Run=name)
            proxy.ask({**plain, "tools": TOOLS}, Agentguard_Run=f"guarded-{name}")
        with Store.open(tmp_path / "runs.db") as store:
            within(30, lambda: len(store.list_runs(page=Page(limit=100)).rows) == 2 * len(names))
            kept = {row.id for row in store.list_runs(page=Page(limit=100)).rows}
    assert {f"{name}-unguarded" for name in names} <= kept
    suffixes = {id.rpartition("-")[2] for id in kept if id.startswith("guarded-")}
    assert len(suffixes) <= 2, "one for each worker"
