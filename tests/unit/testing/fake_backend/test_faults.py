"""Each fault as a minimal client sees it: raw sockets, bytes, times."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import closing

import pytest

from agentguard.errors import ConfigError
from agentguard.testing.fake_backend import (
    Corrupt,
    ErrorEvent,
    FakeBackend,
    FaultSchedule,
    Hang,
    HeartbeatOnly,
    Huge,
    InjectedFault,
    InvalidResponse,
    MarkScript,
    Ok,
    Raw,
    RecordedRequest,
    Refuse,
    Reset,
    Stall,
    StatusFault,
    Trickle,
    Truncate,
)

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
LAST = {
    "chat": b"data: [DONE]\n\n",
    "completions": b"data: [DONE]\n\n",
    "responses": b"event: response.completed\n",
    "messages": b"event: message_stop\n",
}
TOOL = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}


def asked(api="chat", *, stream=False, text="hello", tools=False):
    value = {"model": "m", "stream": stream}
    if api in ("chat", "messages"):
        value["messages"] = [{"role": "user", "content": text}]
    else:
        value["prompt" if api == "completions" else "input"] = text
    if tools:
        value["tools"] = [TOOL if api == "chat" else {"type": "function", "name": "book"}]
    return json.dumps(value).encode()


def request(path, body, *, more=""):
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def connected(backend):
    made = socket.create_connection(("127.0.0.1", backend.port), timeout=30)
    return closing(made)


def ask(backend, api="chat", *, seconds=30.0, enough=None, **options):
    """Return all bytes until the end, the time limit or a condition, and how the connection ended."""
    with connected(backend) as client:
        client.sendall(request(PATHS[api], asked(api, **options), more="connection: close\r\n"))
        return read(client, seconds, enough)


def read(client, seconds=30.0, enough=None):
    data, until = bytearray(), time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not (enough and enough(data)):
        client.settimeout(left)
        try:
            part = client.recv(1 << 16)
        except TimeoutError:
            break
        except ConnectionResetError:
            return bytes(data), "reset"
        if not part:
            return bytes(data), "closed"
        data += part
    return bytes(data), "open"


def body_of(data):
    head, _, rest = data.partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return rest
    body = bytearray()
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return bytes(body)


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("api", LAST)
def test_correct_answer_is_deterministic_and_equal_when_streamed(api, tools):
    with FakeBackend() as first, FakeBackend() as second:
        whole, end = ask(first, api, tools=tools)
        assert end == "closed"
        assert whole == ask(second, api, tools=tools)[0]
        stream, _ = ask(first, api, tools=tools, stream=True)
        right = first.build_expected_response(PATHS[api], asked(api, tools=tools))
    assert right == first.build_expected_response(PATHS[api], asked(api, tools=tools, stream=True))
    events = [json.loads(line[6:]) for line in body_of(stream).splitlines() if line.startswith(b"data: {")]
    said = json.dumps(events)
    assert LAST[api] in stream
    assert all(json.dumps(token)[1:-1] in said for token in right.tokens())
    if api == "messages" and right.tool:
        assert json.loads(body_of(whole))["content"][0]["input"] == json.loads(right.arguments)
    else:
        assert json.dumps(right.content) in body_of(whole).decode()
    assert bool(right.tool) == (tools and api != "completions")


def test_known_question_has_its_configured_answer():
    with FakeBackend(known_answers={"capital of France": "Paris"}) as backend:
        assert b'"Paris"' in ask(backend, text="What is the capital of France?")[0]
        assert b"Paris" not in ask(backend, text="of Spain?")[0]


def test_tool_result_is_answered_with_text_and_prefix_is_continued():
    with FakeBackend() as backend:
        turns = [{"role": "user", "content": "x"}]
        text = backend.build_expected_response(PATHS["chat"], json.dumps({"messages": turns}).encode()).text
        prefix = {"messages": [*turns, {"role": "assistant", "content": text[:20]}]}
        assert backend.build_expected_response(PATHS["chat"], json.dumps(prefix).encode()).text == text[20:]
        after = {"messages": [*turns, {"role": "tool", "content": "done"}], "tools": [TOOL]}
        assert backend.build_expected_response(PATHS["chat"], json.dumps(after).encode()).tool == ""


def test_models_embeddings_and_other_requests_have_answers():
    with FakeBackend() as backend, connected(backend) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert json.loads(body_of(read(client)[0]))["data"][0]["object"] == "model"
        assert len(json.loads(body_of(ask(backend, "embeddings")[0]))["data"][0]["embedding"]) == 8
        with connected(backend) as other:
            other.sendall(request("/anything?x=1", b"\xff", more="connection: close\r\n"))
            assert read(other)[0].startswith(b"HTTP/1.1 200 ")
    assert [one.api for one in backend.requests] == ["models", "embeddings", "other"]


BROKEN = [
    (Reset(), False, "reset", b"", False),
    (Reset(), True, "reset", b"", False),
    (Reset(tokens=2), True, "reset", b"HTTP/1.1 200", False),
    (Reset(tokens=2), False, "reset", b"HTTP/1.1 200", False),
    (Truncate(framing="chunked"), True, "closed", b"HTTP/1.1 200", False),
    (Truncate(framing="ended"), True, "closed", b"HTTP/1.1 200", True),
    (Truncate(framing="close"), True, "closed", b"HTTP/1.1 200", False),
    (Truncate(framing="length"), True, "closed", b"HTTP/1.1 200", False),
    (Truncate(framing="length"), False, "closed", b"HTTP/1.1 200", False),
    (Truncate(framing="close"), False, "closed", b"HTTP/1.1 200", False),
    (Truncate(tokens=99), True, "closed", b"HTTP/1.1 200", False),
    (Hang(), True, "open", b"", False),
    (Stall(tokens=2), True, "open", b"HTTP/1.1 200", False),
    (Stall(), False, "open", b"HTTP/1.1 200", False),
]


@pytest.mark.parametrize(("fault", "stream", "end", "begins", "framed"), BROKEN, ids=str)
def test_cut_answers_are_incomplete(fault, stream, end, begins, framed):
    with FakeBackend(fault) as backend, connected(backend) as client:
        client.sendall(request(PATHS["chat"], asked(stream=stream), more="connection: close\r\n"))
        data, ended = read(client, enough=lambda data: end == "open" and data.startswith(begins))
        if end == "open":
            more, ended = read(client, 0.2)  # incomplete, and no more bytes follow
            data += more
        client.close()
        assert (ended, data.endswith(b"0\r\n\r\n")) == (end, framed)
        assert data.startswith(begins)
        assert bool(data) == bool(begins)
        assert LAST["chat"] not in data
        if stream and begins:
            tokens = min(fault.tokens, 8)
            assert data.count(b'"delta": {"content": "') == tokens
            assert backend.requests[0].tokens == tokens
        if not stream and begins:
            with pytest.raises(json.JSONDecodeError):
                json.loads(data.partition(b"\r\n\r\n")[2])
        backend.wait_until(lambda: backend.requests and backend.requests[0].is_finished)
        assert backend.requests[0].is_cancelled == (end == "open")


def test_stall_may_end():
    with FakeBackend(Stall(tokens=1, duration_s=0.05)) as backend:
        assert ask(backend, stream=True)[0].endswith(LAST["chat"] + b"\r\n0\r\n\r\n")
        json.loads(body_of(ask(backend)[0]))


@pytest.mark.parametrize("api", LAST)
@pytest.mark.parametrize("kind", ["comment", "event", "both"])
def test_heartbeats_never_end_and_have_no_content(api, kind):
    with FakeBackend(HeartbeatOnly(tokens=1, interval_s=0.01, kind=kind)) as backend:
        beats = b"\n\n" if kind == "event" else b": still here\n\n"
        data, end = ask(backend, api, stream=True, enough=lambda data: data.count(beats) > 9)
        assert end == "open"
        assert (b": still here\n\n" in data) == (kind != "event")
        assert data.count(b"answer-") == 1
        blanks = b"1\r\n \r\n"
        assert ask(backend, api, enough=lambda data: data.count(blanks) > 1)[1] == "open"


def test_trickle_sends_the_correct_answer():
    with FakeBackend(Trickle(size=300, interval_s=0.005)) as backend:
        plain = FakeBackend().build_expected_response(PATHS["chat"], asked())
        assert json.loads(body_of(ask(backend)[0]))["choices"][0]["message"]["content"] == plain.text
        assert ask(backend, stream=True)[0].endswith(LAST["chat"])
        backend.set_script(Trickle(size=1, interval_s=1.0))
        assert 0 < len(ask(backend, enough=bool)[0]) < 20


def test_status_fault_has_its_headers():
    with FakeBackend(
        StatusFault(status=429, retry_after="-1", headers=(("x-should-retry", "false"),))
    ) as backend:
        data, _ = ask(backend)
        assert data.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert b"\r\nretry-after: -1\r\n" in data
        assert b"\r\nx-should-retry: false\r\n" in data
        assert json.loads(body_of(data))["error"]["code"] == 429
        assert json.loads(body_of(ask(backend, "messages")[0]))["type"] == "error"
        backend.set_script(StatusFault(status=599))
        assert ask(backend)[0].startswith(b"HTTP/1.1 599 Unknown\r\n")


@pytest.mark.parametrize("kind", ["json", "event", "html", "nothing", "utf8", "list"])
def test_invalid_answer_is_not_valid(kind):
    with FakeBackend(InvalidResponse(kind=kind)) as backend:
        body = body_of(ask(backend)[0])
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        assert not isinstance(value, dict)
        stream = body_of(ask(backend, stream=True)[0])
        datas = [event for event in stream.split(b"\n\n") if event.strip()]
        assert not datas or any(not sound(event) for event in datas)


def sound(event):
    if event == b"data: [DONE]":
        return True
    try:
        return isinstance(json.loads(event.removeprefix(b"data: ")), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("api", LAST)
def test_empty_answer_is_valid_for_the_api_and_has_no_content(api):
    with FakeBackend(InvalidResponse(kind="empty")) as backend:
        value = json.loads(body_of(ask(backend, api)[0]))
        assert [value[key] for key in ("choices", "output", "content") if key in value] == [[]]
        stream = body_of(ask(backend, api, stream=True)[0])
        assert LAST[api] in stream
        assert b"answer-" not in stream


def test_corruption_is_valid_and_wrong():
    with FakeBackend(Corrupt()) as backend:
        right = backend.build_expected_response(PATHS["chat"], asked(tools=True))
        call = json.loads(body_of(ask(backend, tools=True)[0]))["choices"][0]["message"]["tool_calls"][0]
        flipped = json.loads(call["function"]["arguments"])
        assert flipped.keys() == json.loads(right.arguments).keys()
        assert flipped != json.loads(right.arguments)
        backend.set_script(Corrupt(kind="foreign"))
        first, second = ask(backend, text="one")[0], ask(backend, text="two")[0]
        assert first == second


def test_oversized_head_body_and_event_are_sent():
    size = 300_000
    for part, stream in (("head", False), ("body", False), ("body", True), ("event", True)):
        with FakeBackend(Huge(part=part, size=size)) as backend:
            data, end = ask(backend, stream=stream)
            assert end == "closed"
            assert 0.9 * size < len(data) < 1.3 * size
            head, body = len(data.partition(b"\r\n\r\n")[0]), body_of(data)
            assert (head > size * 0.9) == (part == "head")
            longest = max(map(len, body.split(b"\n\n")), default=0)
            assert (longest > size * 0.9) == (part == "event" or (part == "body" and not stream))


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("api", LAST)
def test_error_event_is_sent_in_a_stream(api, done):
    with FakeBackend(ErrorEvent(tokens=2, include_done=done)) as backend:
        data = body_of(ask(backend, api, stream=True)[0])
        assert b"was configured to fail" in data
        assert (LAST[api] in data) == done
        assert "error" in json.loads(body_of(ask(backend, api)[0]))


def test_raw_bytes_are_followed_by_their_connection_action():
    with FakeBackend(
        [Raw(data=b"nonsense"), Raw(data=b"x", connection_action="reset"), Raw(connection_action="hold")]
    ) as backend:
        assert ask(backend) == (b"nonsense", "closed")
        assert ask(backend)[1] == "reset"
        assert ask(backend, seconds=0.1) == (b"", "open")


def test_refusal_keeps_the_port():
    with FakeBackend(Refuse()) as backend:
        port = backend.port
        with pytest.raises(ConnectionRefusedError):
            ask(backend)
        backend.set_script(Ok())
        with connected(backend) as kept:
            assert ask(backend)[1] == "closed"
            with backend.refuse_connections():
                with pytest.raises(ConnectionRefusedError):
                    ask(backend)
                assert read(kept)[1] == "reset"
        assert ask(backend)[1] == "closed"
        assert backend.port == port


def test_disconnect_is_detected_at_once():
    with FakeBackend([Hang(), Stall(tokens=1), Ok(first_token_delay_s=30)]) as backend:
        for n in range(3):
            with connected(backend) as client:
                client.sendall(request(PATHS["chat"], asked(stream=True)))
                backend.wait_until(lambda n=n: len(backend.requests) == n + 1)
                left = time.monotonic()
            backend.wait_until(lambda n=n: backend.requests[n].is_finished)
            assert backend.requests[n].is_cancelled
            assert 0 <= backend.requests[n].disconnected_at - left < 10.0, "the last would take 30"
        backend.wait_until(lambda: backend.open_connections == 0)
        assert backend.active_requests == 0


def test_slow_reader_applies_backpressure():
    with FakeBackend(Huge(size=200 << 20)) as backend, connected(backend) as client:
        client.sendall(request(PATHS["chat"], asked()))
        client.recv(100)
        with pytest.raises(TimeoutError):
            backend.wait_until(lambda: backend.requests and backend.requests[0].is_finished, 0.5)


def test_connection_is_reused_and_chunked_bodies_are_read():
    with FakeBackend() as backend, connected(backend) as client:
        for _ in range(2):
            client.sendall(request(PATHS["chat"], asked()))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        body = b'5\r\n{"a":\r\n2;x=y\r\n1}\r\n0\r\n\r\n'
        client.sendall(
            b"POST /v1/other HTTP/1.1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n" + body
        )
        assert read(client)[1] == "closed"
    assert backend.connection_count == 1
    assert [one.connection for one in backend.requests] == [0, 0, 0]
    assert backend.requests[2].body == b'{"a":1}'


def test_invalid_request_is_answered_with_400():
    with FakeBackend() as backend:
        for bad in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            with connected(backend) as client:
                client.sendall(bad)
                assert read(client)[0].startswith(b"HTTP/1.1 400 ")
    assert backend.requests == []


def test_each_mark_has_its_own_script():
    script = MarkScript(
        {"a": [StatusFault(status=500), Ok()], "b": StatusFault(status=400)}, default=StatusFault(status=404)
    )
    with FakeBackend(script) as backend:
        got = [ask(backend, text=f"[[{mark}]]")[0][9:12] for mark in ("a", "b", "a", "b", "a", "c")]
    assert got == [b"500", b"400", b"200", b"400", b"200", b"404"]
    assert [one.attempt for one in backend.list_attempts("a")] == [0, 1, 2]


def test_schedule_depends_on_seed_instead_of_order():
    faults = {Ok(): 2.0, StatusFault(status=500): 1.0, StatusFault(status=429): 1.0}

    def run(keys, seed):
        counts: dict[str, int] = {}
        got: dict[tuple[str, int], InjectedFault] = {}
        for key in keys:
            attempt = counts.setdefault(key, 0)
            counts[key] += 1
            got[key, attempt] = FaultSchedule(faults, seed=seed)(seen(key, attempt))
        return got

    keys = [f"case-{n % 40}" for n in range(120)]
    assert run(keys, 1) == run(sorted(keys), 1)
    assert run(keys, 1) != run(keys, 2)
    assert set(run(keys, 1).values()) == set(faults)


def seen(key, attempt):
    return RecordedRequest(
        number=0, connection=0, received_at=0.0, method="POST", target="/", headers=(), body=b"", api="other",
        stream=False, key=key, attempt=attempt,
    )  # fmt: skip


def test_invalid_scripts_are_rejected():
    for script in ([], [Ok(), Refuse()]):
        with pytest.raises(ConfigError):
            FakeBackend(script)
    with pytest.raises(ConfigError):
        MarkScript({"a": []})
    for weights in ({}, {Ok(): -1.0}, {Ok(): 0.0}, {Refuse(): 1.0}):
        with pytest.raises(ConfigError):
            FaultSchedule(weights)


def test_concurrent_requests_are_answered():
    with FakeBackend(Ok(first_token_delay_s=0.1)) as backend:
        threads = [threading.Thread(target=ask, args=(backend,), kwargs={"stream": True}) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(one.answered_at is not None for one in backend.requests) == 30
        assert backend.requests[0].get_header("Host") == "x"
        assert backend.requests[0].get_header("absent") is None


def test_backend_refuses_at_once_during_accepts() -> None:
    """Otherwise a connection accepted at the same moment would wait forever."""
    stop, knocked = threading.Event(), list[socket.socket]()

    def knock() -> None:
        while not stop.wait(0.0003):
            made = socket.socket()
            made.setblocking(False)
            made.connect_ex(("127.0.0.1", backend.port))
            knocked.append(made)

    with FakeBackend() as backend:
        knocking = threading.Thread(target=knock)
        knocking.start()
        try:
            for _ in range(20):
                with backend.refuse_connections():
                    assert backend.open_connections == 0
        finally:
            stop.set()
            knocking.join()
            for made in knocked:
                made.close()
