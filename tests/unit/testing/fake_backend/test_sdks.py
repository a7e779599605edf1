"""The public SDKs parse the correct answers without errors: whole and streamed, text and tools."""

from __future__ import annotations

import json

import pytest
from anthropic import Anthropic
from openai import InternalServerError, OpenAI

from agentguard.testing.fake_backend import FakeBackend, StatusFault

TURNS = [{"role": "user", "content": "hello"}]
PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "book", "parameters": PARAMETERS}}


@pytest.fixture
def backend():
    with FakeBackend() as made:
        yield made


@pytest.fixture
def openai(backend):
    with OpenAI(base_url=backend.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic(backend):
    with Anthropic(base_url=backend.url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        yield client


def said(backend, path, **body):
    return backend.build_expected_response(path, json.dumps(body).encode())


def test_openai_reads_chat(backend, openai):
    right = said(backend, "/chat/completions", messages=TURNS).text
    answer = openai.chat.completions.create(model="m", messages=TURNS)
    assert answer.choices[0].message.content == right
    with openai.chat.completions.stream(model="m", messages=TURNS) as stream:
        assert stream.get_final_completion().choices[0].message.content == right


def test_openai_reads_chat_tool_call(backend, openai):
    right = said(backend, "/chat/completions", messages=TURNS, tools=[CHAT_TOOL])
    answer = openai.chat.completions.create(model="m", messages=TURNS, tools=[CHAT_TOOL])
    assert answer.choices[0].message.tool_calls[0].function.arguments == right.arguments
    parts = openai.chat.completions.create(model="m", messages=TURNS, tools=[CHAT_TOOL], stream=True)
    calls = [call for part in parts for call in part.choices[0].delta.tool_calls or []]
    assert calls[0].function.name == "book"
    assert "".join(call.function.arguments for call in calls) == right.arguments


def test_openai_reads_responses(backend, openai):
    right = said(backend, "/responses", input="hello").text
    assert openai.responses.create(model="m", input="hello").output_text == right
    with openai.responses.stream(model="m", input="hello") as stream:
        assert stream.get_final_response().output_text == right


def test_openai_reads_responses_tool_call(backend, openai):
    tool = {"type": "function", "name": "book", "parameters": PARAMETERS, "strict": False}
    right = said(backend, "/responses", input="hello", tools=[tool])
    call = openai.responses.create(model="m", input="hello", tools=[tool]).output[0]
    assert (call.name, call.arguments) == ("book", right.arguments)
    with openai.responses.stream(model="m", input="hello", tools=[tool]) as stream:
        assert stream.get_final_response().output[0].arguments == right.arguments


def test_openai_reads_completions_embeddings_and_models(backend, openai):
    right = said(backend, "/completions", prompt="hello").text
    assert openai.completions.create(model="m", prompt="hello").choices[0].text == right
    parts = openai.completions.create(model="m", prompt="hello", stream=True)
    assert "".join(part.choices[0].text for part in parts) == right
    vectors = openai.embeddings.create(model="m", input=["a", "b"], encoding_format="float").data
    assert [len(one.embedding) for one in vectors] == [8, 8]
    assert openai.models.list().data[0].id == "a-model"


def test_anthropic_reads_messages(backend, anthropic):
    right = said(backend, "/v1/messages", messages=TURNS).text
    answer = anthropic.messages.create(model="m", max_tokens=9, messages=TURNS)
    assert answer.content[0].text == right
    with anthropic.messages.stream(model="m", max_tokens=9, messages=TURNS) as stream:
        assert stream.get_final_text() == right


def test_anthropic_reads_messages_tool_call(backend, anthropic):
    tool = {"name": "book", "input_schema": PARAMETERS}
    right = json.loads(said(backend, "/v1/messages", messages=TURNS, tools=[tool]).arguments)
    answer = anthropic.messages.create(model="m", max_tokens=9, messages=TURNS, tools=[tool])
    assert answer.content[0].input == right
    with anthropic.messages.stream(model="m", max_tokens=9, messages=TURNS, tools=[tool]) as stream:
        assert stream.get_final_message().content[0].input == right


def test_sdks_recognise_errors(backend, openai):
    backend.set_script(StatusFault(status=500))
    with pytest.raises(InternalServerError, match="was configured to fail"):
        openai.chat.completions.create(model="m", messages=TURNS)
