"""The proxy in front of a real vLLM: only the SDKs' base URL changes, and a looping agent is rolled back.

The model's words are masked on their way to the server (`tests.vllm.scripted_endpoint`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from openai import OpenAI

from agentguard.store import Store
from tests.faulty_relay import cutting
from tests.proxy_server import Proxy, serving, within
from tests.unit.integrations.openai_server import Body, Raw, Server, serving as model_server
from tests.vllm.scripted_endpoint import BESIDE, TASK, TOOLS, allowed, texts
from tests.vllm_server import VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POLICY: Body = {
    "localizer": {"name": "first_finding"},
    "recover": {"on_fail": ["rollback"]},
    "tools": {"book": {"effect": "write", "key": ["seat"]}, "find": {"effect": "read"}},
}


@contextmanager
def steered(vllm: VllmServer) -> Iterator[Server]:
    """Server between the proxy and vLLM that masks the model's answers and forwards them."""
    server: Server

    def say(body: Body) -> Any:
        masked = {**body, "structured_outputs": {"choice": allowed(*texts(body["messages"]))}}
        with httpx2.stream("POST", f"{vllm.url}/chat/completions", json=masked, timeout=300) as got:
            if body.get("stream"):
                return list(got.iter_raw())
            return Raw(status=got.status_code, content=got.read())

    with model_server(say) as server:
        yield server


def document(url: str, folder: Path) -> Body:
    backends = {"replicas": [{"name": "vllm", "url": url}], "health": "off"}
    return {"backends": backends, "guard": {"policy": POLICY}, "capture": {"store": str(folder / "runs.db")}}


@pytest.mark.parametrize("stream", [False, True])
def test_looping_agent_is_rolled_back(vllm: VllmServer, stream: bool, tmp_path: Path) -> None:
    tools: Any = [{"type": "function", "function": tool} for tool in TOOLS]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    booked: list[int] = []
    with (
        steered(vllm) as server,
        serving(tmp_path, document(server.url, tmp_path)) as proxy,
        OpenAI(base_url=base(proxy), api_key="none", max_retries=0, timeout=300) as client,
    ):
        asked: Any = {
            "model": "judge",
            "tools": tools,
            "max_tokens": 64,
            "extra_headers": {"agentguard-run": "r"},
        }
        for _ in range(12):
            if stream:
                with client.chat.completions.stream(messages=messages, **asked) as flow:
                    message = flow.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(messages=messages, **asked).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for one in message.tool_calls:
                given = json.loads(one.function.arguments)
                assert one.function.name in ("find", "book"), "a refused call never reaches the client"
                text = "nothing found"
                if one.function.name == "book":
                    booked.append(given["seat"])
                    text = f"seat {given['seat']} is yours"
                messages.append({"role": "tool", "tool_call_id": one.id, "content": text})
        assert (message.content or "").strip() == BESIDE
        assert booked == [4]
        run = json.loads(proxy.ask(path="/agentguard/v1/sessions/r", method="GET")[2])
        assert [one["strategy"] for one in run["recoveries"]] == ["rollback", "rollback"]
        with Store.open(tmp_path / "runs.db") as store:
            within(30, lambda: bool(store.list_diagnoses("r")))
            kept = store.get_trajectory("r")
        assert kept is not None
        assert kept.steps[-1].content.strip() == BESIDE
        assert len(kept.branches) == 2


def test_every_vllm_api_passes_the_proxy(vllm: VllmServer, tmp_path: Path) -> None:
    """The proxy returns the server's answers, token by token or at once."""
    asked: list[Any] = [{"role": "user", "content": "Say something."}]
    with (
        serving(tmp_path, document(vllm.url, tmp_path)) as proxy,
        OpenAI(base_url=base(proxy), api_key="none", max_retries=0, timeout=300) as client,
        Anthropic(base_url=base(proxy)[:-3], api_key="none", max_retries=0, timeout=300) as claude,
    ):
        assert [one.id for one in client.models.list()] == ["judge"]
        assert client.completions.create(model="judge", prompt="One, two,", max_tokens=4).choices[0].text
        made = client.responses.create(model="judge", input="Say something.", max_output_tokens=8)
        assert made.usage is not None
        with client.responses.stream(model="judge", input="Say something.", max_output_tokens=8) as flow:
            kinds = [event.type for event in flow]
        assert kinds[0] == "response.created"
        assert kinds[-1] in ("response.completed", "response.incomplete")
        said = claude.messages.create(model="judge", max_tokens=8, messages=asked)
        assert said.content[0].type == "text"
        with claude.messages.stream(model="judge", max_tokens=8, messages=asked) as told:
            assert told.get_final_message().usage.output_tokens > 0


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_interrupted_stream_is_continued_from_its_text(vllm: VllmServer, api: str, tmp_path: Path) -> None:
    """The connection is reset in the middle; vLLM continues the text that the client has received."""
    path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    asked: Body = {"model": "judge", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True}
    asked |= (
        {"messages": [{"role": "user", "content": "Count."}]} if api == "chat" else {"prompt": "One, two,"}
    )
    with cutting(vllm.url) as relay:
        replica = {"name": "vllm", "url": relay.url, "resumable": True}
        config = {"backends": {"replicas": [replica], "health": "off"}}
        with serving(tmp_path, config) as proxy:
            whole = proxy.ask(asked, path=path, Content_Type="application/json")
            relay.cut(after=9)
            status, headers, body = proxy.ask(asked, path=path, Content_Type="application/json")
            metrics = proxy.ask(method="GET", path="/metrics")[2].decode()
    assert (status, whole[0], relay.cuts) == (200, 200, 1)
    assert headers["content-type"].startswith("text/event-stream")
    before, mark, after = body.partition(b": agentguard: continued by vllm\n\n")
    assert mark, body
    assert body.count(b"data: [DONE]") == 1
    assert body.endswith(b"data: [DONE]\n\n")
    first, rest = said(before), said(after)
    assert first
    assert rest, "it went on"
    assert said(whole[2]).startswith(first), "what was shown before the cut is what the model said"
    chunks = events(body)
    assert len({chunk["id"] for chunk in chunks}) == 1, "the client sees one answer"
    ends = [one["choices"][0]["finish_reason"] for one in chunks if one["choices"]]
    assert [end for end in ends if end] == ["length"]
    assert 'kind="continued"' in metrics
    assert rest.lstrip() == went_on(vllm, api, asked, first, before).lstrip(), (
        "as vLLM goes on when asked directly"
    )


def went_on(vllm: VllmServer, api: str, asked: Body, text: str, shown: bytes) -> str:
    """Return the server's own continuation of a text."""
    tokens = sum(bool(said_in(chunk)) for chunk in events(shown))
    body = {**asked, "stream": False, "max_tokens": asked["max_tokens"] - tokens}
    if api == "chat":
        body["messages"] = [*asked["messages"], {"role": "assistant", "content": text.strip()}]
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    else:
        body["prompt"] = asked["prompt"] + text.rstrip()
    where = "chat/completions" if api == "chat" else "completions"
    made = httpx2.post(f"{vllm.url}/{where}", json=body, timeout=300).json()["choices"][0]
    return str(made["message"]["content"] if api == "chat" else made["text"])


def events(body: bytes) -> list[Any]:
    """Return the chunks of a stream, or of a part of one."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def said_in(chunk: Any) -> str:
    """Return the text in a chunk."""
    choice = (chunk["choices"] or [{}])[0]
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")


def said(body: bytes) -> str:
    """Return the text in a stream."""
    return "".join(map(said_in, events(body)))


def base(proxy: Proxy) -> str:
    return f"http://127.0.0.1:{proxy.port}/v1"
