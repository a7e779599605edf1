"""Inspection of requests: headers, bodies and paths with any bytes, and the few fields that are read."""

import json

import pytest
from agentguard_server.proxy.errors import (
    ProxyError,
    build_error_headers,
    encode_error_body,
    encode_error_event,
)
from agentguard_server.proxy.http.headers import (
    extract_api_key,
    filter_response_headers,
    split_request_headers,
)
from agentguard_server.proxy.requests.request_parser import inspect_body, inspect_body_with_prefix
from agentguard_server.proxy.routes import match_route
from hypothesis import given, settings, strategies as st

NAMES = st.sampled_from(
    [b"x-a", b"x-b", b"connection", b"te", b"authorization", b"x-api-key", b"agentguard-run", b"agentguard-x",
     b"content-type", b"host", b"content-length", b"transfer-encoding", b"content-encoding", b"cookie"]
)  # fmt: skip
PAIRS = st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"close, x-a", b"Bearer k", b"x-b"])), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NEVER_ON = frozenset(
    b"connection te transfer-encoding host content-length cookie agentguard-run agentguard-x".split()
)


@given(PAIRS, st.booleans())
def test_request_headers_keep_order_without_private_ones(raw, auth):
    on, ours = split_request_headers(raw, forward_api_key=auth)
    names = {name for name, _ in on}
    assert not names & NEVER_ON
    hops = {one.strip() for name, value in raw if name == b"connection" for one in value.split(b",")}
    keys = set() if auth else {b"authorization", b"x-api-key"}
    assert on == [pair for pair in raw if pair[0] not in NEVER_ON | hops | keys]
    assert set(ours) <= {name for name, _ in raw}


@given(PAIRS)
def test_response_headers_drop_connection_and_proxy_headers(raw):
    kept = filter_response_headers(tuple(raw))
    assert [pair for pair in kept if pair not in raw] == []
    assert not {name for name, _ in kept} & {
        b"connection",
        b"transfer-encoding",
        b"content-length",
        b"agentguard-run",
    }


@pytest.mark.parametrize(
    ("ours", "key"),
    [
        ({b"authorization": b"Bearer k"}, b"k"),
        ({b"authorization": b"Basic k", b"x-api-key": b"other"}, b""),
        ({b"authorization": b"Bearer"}, b""),
        ({b"x-api-key": b"k"}, b"k"),
        ({b"api-key": b"k"}, b"k"),
        ({}, b""),
    ],
)
def test_key_is_found_in_sdk_headers(ours, key):
    assert extract_api_key(ours) == key


@given(st.dictionaries(st.text(), JSON, max_size=5), st.text(), st.booleans())
def test_model_and_stream_are_found_at_any_position(others, model, stream):
    body = {**others, "model": model, "stream": stream}
    found = inspect_body(json.dumps(body).encode())
    assert (found.model, found.stream) == (model, stream)


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_parsed_or_rejected(body):
    for read in (inspect_body, inspect_body_with_prefix):
        try:
            read(body)
        except ProxyError as refusal:
            assert refusal.status == 400


@pytest.mark.parametrize("depth", [1100, 100_000])
def test_deeply_nested_body_is_rejected(depth):
    for body in (b"[" * depth, b'{"messages":' + b"[" * depth + b"]" * depth + b"}", b'{"a":' * depth):
        for read in (inspect_body, inspect_body_with_prefix):
            with pytest.raises(ProxyError):
                read(body)


def messages(*contents: str, system: str = "you are an agent") -> bytes:
    roles = ["user", "assistant"]
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    return json.dumps({"messages": [{"role": "system", "content": system}, *turns]}).encode()


class TestPrefix:
    def test_prefix_is_equal_at_each_turn_of_a_run(self):
        first = inspect_body_with_prefix(messages("find it"))[1]
        assert first == inspect_body_with_prefix(messages("find it", "I look", "go on"))[1]
        assert first != inspect_body_with_prefix(messages("find another"))[1]
        assert first != inspect_body_with_prefix(messages("find it", system="you are another"))[1]

    @pytest.mark.parametrize("name", ["input", "prompt"])
    def test_prefix_of_text_is_its_beginning(self, name):
        def of(text: str) -> bytes:
            return inspect_body_with_prefix(json.dumps({name: text}).encode())[1]

        assert of("a" * 5000) == of("a" * 6000)
        assert of("a") != of("b")

    def test_prefix_of_items_ignores_later_items(self):
        one = json.dumps({"input": [{"role": "user", "content": "x"}]}).encode()
        more = json.dumps({"input": [{"role": "user", "content": "x"}, {"type": "function_call"}]}).encode()
        assert inspect_body_with_prefix(one)[1] == inspect_body_with_prefix(more)[1]


@given(st.sampled_from(["GET", "POST"]), st.binary(max_size=30))
def test_only_exact_health_paths_are_open(method, tail):
    for path in (b"/" + tail, b"/healthz" + tail, b"/v1/" + tail):
        found = match_route(method, path)
        viewer = path == b"/ui" or path.startswith(b"/ui/")
        assert (found.kind == "open") == (path in (b"/healthz", b"/readyz") or viewer)
        if found.kind == "through":
            assert b".." not in path.split(b"/")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503, 504])
def test_error_type_matches_api(status):
    refusal = ProxyError(status, "a_code", "a reason")
    openai = json.loads(encode_error_body(refusal, "openai", "id"))["error"]
    messages = json.loads(encode_error_body(refusal, "messages", "id"))
    assert openai["type"].endswith("_error")
    assert (messages["type"], messages["request_id"]) == ("error", "id")
    for api in ("chat", "completions", "responses", "messages"):
        event = encode_error_event(refusal, api, "id")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n\n") == 1
        json.loads(event.partition(b"data: ")[2])


@pytest.mark.parametrize(
    ("after", "told"), [(0.2, b"1"), (7, b"7"), (1e9, b"3600"), (None, None), (-1.0, None)]
)
def test_retry_after_is_in_whole_seconds(after, told):
    headers = dict(build_error_headers(ProxyError(503, "c", "r", retry_after_s=after)))
    assert headers.get(b"retry-after") == told
    assert (headers.get(b"x-should-retry") == b"false") == (after == -1.0)
