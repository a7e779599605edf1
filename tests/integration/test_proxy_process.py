"""The proxy as a real process with a real backend: forwarding, disconnects, reload, shutdown, crashes."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time

import pytest

from agentguard.testing.fake_backend import FakeBackend, Hang, Huge, Ok, Stall, StatusFault, Truncate
from tests.proxy_server import CHAT, chat, encoded, raw, read_all, read_answer, read_until, serving, within

CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def backend():
    with FakeBackend() as one:
        yield one


@pytest.fixture(scope="module")
def proxy(backend, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("proxy"), {"backends": backends(backend)}) as one:
        yield one


@pytest.fixture(scope="module")
def hasty(backend, tmp_path_factory):
    """Return a proxy with short timeouts, only for tests of timeouts."""
    document = {
        "backends": backends(backend),
        "limits": {
            "header_timeout_s": 3,
            "body_timeout_s": 1,
            "write_timeout_s": 1,
            "keepalive_timeout_s": 60,
        },
    }
    with serving(tmp_path_factory.mktemp("hasty"), document) as one:
        yield one


@pytest.fixture(autouse=True)
def fresh(request):
    if "backend" in request.fixturenames:
        one = request.getfixturevalue("backend")
        one.set_script(Ok())
        one.requests.clear()


def backends(*endpoints):
    replicas = [{"name": f"b{n}", "url": one.url} for n, one in enumerate(endpoints)]
    pipeline = {
        "retry": {"max_attempts": 1},
        "hedge": "off",
        "adaptive_throttling": "off",
        "circuit_breaker": "off",
    }
    return {"replicas": replicas, "health": "off", "outlier": "off", "pipeline": pipeline}


@contextlib.contextmanager
def started(folder, fault, **listen):
    """Start a separate proxy with its own backend."""
    with FakeBackend(fault) as backend:
        document = {"listen": {"port": 0, **listen}, "backends": backends(backend)}
        with serving(folder, document) as proxy:
            yield proxy, backend


def direct(backend, body: bytes) -> bytes:
    """Return the backend's direct answer, without a proxy."""
    connection = http.client.HTTPConnection("127.0.0.1", backend.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", CHAT, body)
        return connection.getresponse().read()


def payloads(stream: bytes) -> list[bytes]:
    return [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ")]


class TestForwarding:
    @pytest.mark.parametrize("stream", [False, True])
    def test_answer_is_forwarded_unchanged(self, proxy, backend, stream):
        body = encoded(chat(stream=stream, unknown={"kept": [1.50, None]}))
        status, headers, got = proxy.ask(body, X_Custom="kept", Agentguard_Run="r1")
        assert status == 200
        assert got == direct(backend, body)
        assert headers["agentguard-replica"] == "b0"
        assert headers["agentguard-request"]
        seen = backend.requests[0]
        assert (seen.body, seen.get_header("x-custom")) == (body, "kept")
        assert not [name for name, _ in seen.headers if name.startswith(b"agentguard")]

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/models"),
            ("DELETE", "/v1/files/f-1?x=%20y"),
            ("POST", "/v1/audio/speech"),
            ("PATCH", "/v1/x"),
        ],
    )
    def test_unknown_api_passes_through(self, proxy, backend, method, path):
        body = b"\x00 not JSON" if method in ("POST", "PATCH") else b""
        proxy.ask(body, path=path, method=method)
        seen = backend.requests[-1]
        assert (seen.method, seen.target, seen.body) == (method, path, body)

    def test_long_file_passes_through_without_buffering(self, proxy, backend):
        size = 60_000_000
        backend.set_script(Huge(size=size))
        before = rss(proxy.process.pid)
        with proxy.connect() as client:
            client.sendall(b"GET /v1/files/f HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            head, _, body = read_until(client, b"\r\n\r\n").partition(b"\r\n\r\n")
            got = len(body)
            while data := client.recv(1 << 20):
                got += len(data)
        assert b" 200 " in head
        assert got >= size
        assert rss(proxy.process.pid) - before < 20_000_000

    def test_client_key_is_forwarded_if_neither_side_has_one(self, proxy, backend):
        proxy.ask(chat(), Authorization="Bearer of-the-client")
        assert backend.requests[-1].get_header("authorization") == "Bearer of-the-client"

    def test_token_is_forwarded_before_the_next_one_exists(self, proxy, backend):
        backend.set_script(Stall(tokens=1))
        body = encoded(chat(stream=True))
        first = backend.build_expected_response(CHAT, body).content.split()[0].encode()
        with proxy.connect() as client:
            client.sendall(raw(body))
            assert first in read_until(client, first)
            assert not backend.requests[-1].is_finished

    def test_endpoint_error_is_forwarded_unchanged(self, proxy, backend):
        backend.set_script(StatusFault(status=404, headers=(("x-why", "no such model"),)))
        status, headers, body = proxy.ask(chat())
        assert (status, headers["x-why"]) == (404, "no such model")
        assert json.loads(body)["error"]

    @pytest.mark.parametrize("framing", ["ended", "chunked", "close"])
    def test_interrupted_stream_ends_with_one_error(self, proxy, backend, framing):
        backend.set_script(Truncate(tokens=3, framing=framing))
        status, _, body = proxy.ask(chat(stream=True))
        assert status == 200
        last = payloads(body)[-1]
        assert json.loads(last)["error"]["code"] == "backend_error"
        assert b"[DONE]" not in body

    def test_requests_share_a_connection(self, proxy):
        with proxy.connect() as client:
            for _ in range(3):
                client.sendall(raw(chat()))
                assert read_answer(client)[0] == 200

    def test_pipelined_requests_are_answered_in_order(self, proxy):
        with proxy.connect() as client:
            client.sendall(raw(chat()) + raw(b"no JSON") + raw(chat(), headers="Connection: close\r\n"))
            statuses = re.findall(rb"HTTP/1.1 (\d+)", read_all(client))
        assert statuses == [b"200", b"400", b"200"]


class TestClientDisconnect:
    """A client disconnect cancels the upstream request, also without streaming (LiteLLM #37140)."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_disconnect_before_first_token_cancels_upstream(self, proxy, backend, stream):
        backend.set_script(Hang())
        client = proxy.connect()
        client.sendall(raw(chat(stream=stream)))
        backend.wait_until(lambda: backend.requests)
        self.left(backend, client)

    def test_disconnect_within_stream_cancels_upstream(self, proxy, backend):
        backend.set_script(Stall(tokens=3))  # there is no next token whose write could fail
        client = proxy.connect()
        client.sendall(raw(chat(stream=True)))
        read_until(client, b"data: ")
        self.left(backend, client)

    def test_disconnect_after_large_body_cancels_upstream(self, proxy, backend):
        backend.set_script(Hang())
        client = proxy.connect()
        client.sendall(raw(chat(text="x" * 2_000_000)))
        backend.wait_until(lambda: backend.requests)
        self.left(backend, client)

    def left(self, backend, client):
        at = time.monotonic()
        client.close()
        seen = backend.requests[-1]
        backend.wait_until(lambda: seen.disconnected_at is not None, 60)
        # The promise is 100 ms; the rest is tolerance. Without detection, the proxy waits for the endpoint,
        # at
        # least the 20 s of the token timeout.
        assert seen.disconnected_at - at < 0.1 + 5


class TestTimeouts:
    @pytest.fixture
    def proxy(self, hasty):
        return hasty

    def test_slow_head_times_out(self, proxy):
        with proxy.connect() as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a")
            assert b" 408 " in read_until(client, b"\r\n\r\n")
            assert self.ends(client)

    def test_idle_connection_is_closed(self, proxy):
        with proxy.connect() as client:
            assert self.ends(client)

    def test_empty_lines_do_not_keep_connection_open(self, proxy):
        with proxy.connect() as client:
            client.sendall(raw(chat()))
            read_answer(client)
            client.sendall(b"\r\n")
            assert self.ends(client)

    def test_slow_body_times_out(self, proxy):
        with proxy.connect() as client:
            client.sendall(raw(chat())[:-5])
            got = read_all(client)
            assert b" 408 " in got
            assert b"request_timeout" in got

    def test_client_that_does_not_read_is_disconnected(self, proxy, backend):
        backend.set_script(Huge(size=50_000_000))
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", proxy.port))
            client.sendall(raw(b"", path="/v1/files/f/content", method="GET"))
            backend.wait_until(lambda: backend.requests and backend.requests[-1].is_finished, 30)

    @staticmethod
    def ends(client):
        client.settimeout(30)
        return client.recv(1) == b""


class TestSizes:
    def test_too_long_declared_body_is_rejected_before_it_arrives(self, proxy):
        with proxy.connect() as client:
            client.sendall(
                b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 157286400\r\n\r\n{"
            )
            got = read_all(client)
        assert b" 413 " in got
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["type"] == "request_too_large"

    def test_too_long_chunked_body_is_rejected(self, proxy):
        before = rss(proxy.process.pid)
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        with proxy.connect() as client:
            client.sendall(CHUNKED)
            with contextlib.suppress(OSError):
                for _ in range(150):
                    client.sendall(chunk)
            assert b" 413 " in read_all(client)
        within(30, lambda: rss(proxy.process.pid) - before < 40_000_000)

    @pytest.mark.parametrize(
        "head", [b"X-Big: " + b"x" * 80_000, b"\r\n".join(b"X-%d: y" % n for n in range(300))]
    )
    def test_too_large_head_is_rejected(self, proxy, head):
        with proxy.connect() as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            assert b" 431 " in read_all(client)

    def test_endless_head_is_rejected_without_buffering(self, proxy):
        with proxy.connect() as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nX: " + b"x" * 200_000)
            assert b" 431 " in read_all(client)


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"POST /v1/x HTTP/1.1\nHost: a\n\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
    ],
)
def test_ambiguous_request_is_rejected(proxy, backend, request_):
    with proxy.connect() as client:
        client.sendall(request_)
        assert b" 400 " in read_all(client)
    assert not backend.requests


@pytest.mark.parametrize("place", ["/v1/x%b HTTP/1.1", "/v1/x?%b HTTP/1.1", "/v1/x HTTP/1.1\r\nX%bY: a"])
def test_client_bytes_are_never_reported_as_endpoint_fault(proxy, place):
    """Otherwise any client could open the breaker: an unsendable request is rejected before the pool."""
    for number in range(256):
        head = b"GET " + place.encode() % bytes([number]) + b"\r\nHost: localhost\r\n\r\n"
        with proxy.connect() as client:
            client.sendall(head)
            assert int(client.recv(65_536).split()[1]) in (200, 400, 404), head


def test_trailers_do_not_become_headers(proxy, backend):
    trailed = b"2\r\n{}\r\n0\r\nX-Sneaked: in\r\nAuthorization: Bearer sneaked\r\n\r\n"
    with proxy.connect() as client:
        client.sendall(
            b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + trailed
        )
        read_until(client, b"\r\n\r\n")
    backend.wait_until(lambda: backend.requests)
    assert backend.requests[-1].body == b"{}"
    assert backend.requests[-1].get_header("x-sneaked") is None
    assert backend.requests[-1].get_header("authorization") is None


@pytest.mark.parametrize("asks", ["plain", "keep-alive", "head", "error"])
@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_client_gets_no_chunks(proxy, backend, asks, stream):
    """RFC 9112, 6.1: the client cannot read chunks; the end of the connection ends the body."""
    body, more = chat(stream=stream), "Connection: keep-alive\r\n" if asks == "keep-alive" else ""
    request = raw(body, headers=more).replace(b" HTTP/1.1", b" HTTP/1.0")
    if asks == "head":
        request = b"HEAD /v1/files/f HTTP/1.0\r\n\r\n"
    if asks == "error":
        backend.set_script(Truncate() if stream else StatusFault(status=404))
    with proxy.connect() as client:
        client.sendall(request)
        head, _, said = read_all(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    if asks == "head":
        assert said == b""
    elif stream:
        events = said.strip().split(b"\n\n")
        assert all(one.startswith((b"data: ", b":")) for one in events)
        assert (events[-1] == b"data: [DONE]") == (asks != "error")
    else:
        assert int(re.search(rb"content-length: (\d+)", head.lower())[1]) == len(said)
        json.loads(said)


def test_administration_sends_no_chunks_to_http_1_0_client(proxy):
    with proxy.connect() as client:
        client.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        head, _, said = read_all(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert "workers" in json.loads(said)


def test_unknown_model_is_distinguished_from_drained_model(backend, tmp_path):
    document = {"backends": backends(backend)}
    document["backends"]["replicas"][0]["models"] = {"m": "served"}
    with serving(tmp_path, document) as proxy:
        code, _, body = proxy.ask(chat(model="nobodys"))
        assert (code, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        code, _, body = proxy.ask({**chat(model="nobodys"), "max_tokens": 5}, path="/v1/messages")
        assert (code, json.loads(body)["error"]["type"]) == (404, "not_found_error")
        assert proxy.ask(method="POST", path="/agentguard/v1/replicas/b0/drain")[0] == 202
        code, headers, body = proxy.ask(chat())
        assert (code, json.loads(body)["error"]["code"]) == (503, "no_replica")
        assert int(headers["retry-after"]) > 0
        assert proxy.ask(chat(model="nobodys"))[0] == 404
        assert not backend.requests


def test_upgrade_request_is_answered_in_http_1(proxy, backend):
    """The JDK's client offers h2c with each request; a server that stops reading there gets no body."""
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    with proxy.connect() as client:
        for _ in range(2):
            client.sendall(raw(chat(), headers=offer))
            status, body = read_answer(client)
            assert status == 200, body
    assert backend.requests[-1].body == encoded(chat())
    assert backend.requests[-1].get_header("upgrade") is None


class TestOperation:
    def test_reload_keeps_streams_and_applies_to_new_requests(self, tmp_path):
        with FakeBackend(Ok(token_interval_s=0.2)) as first, FakeBackend() as second:
            document = {"listen": {"port": 0}, "backends": backends(first)}
            with serving(tmp_path, document) as proxy, proxy.connect() as client:
                client.sendall(raw(chat(stream=True)))
                got = read_until(client, b"data: ")
                other = {"replicas": [{"name": "new", "url": second.url}], "health": "off"}
                proxy.write({**document, "backends": other})
                proxy.signal(signal.SIGHUP)
                within(30, lambda: proxy.ask(chat())[1]["agentguard-replica"] == "new")
                got += read_until(client, b"[DONE]")
                assert got.count(b"data: ") > 5
                proxy.write({**document, "backends": {"replicas": []}})
                proxy.signal(signal.SIGHUP)
                within(30, lambda: "not reloaded" in proxy.said())
                assert proxy.ask(chat())[0] == 200
                assert "replicas: between 1 and 1000" in proxy.said()

    def test_shutdown_finishes_streams_and_rejects_new_requests(self, tmp_path):
        with (
            FakeBackend(Ok(token_interval_s=0.2)) as backend,
            serving(tmp_path, {"backends": backends(backend)}) as proxy,
        ):
            with proxy.connect() as client, proxy.connect() as idle:
                client.sendall(raw(chat(stream=True)))
                got = read_until(client, b"data: ")
                proxy.signal(signal.SIGTERM)
                assert idle.recv(1) == b""
                assert b"[DONE]" in got + read_all(client)
            assert proxy.process.wait(30) == 0
            with pytest.raises(OSError, match="refused"):
                proxy.connect()

    @pytest.mark.parametrize("stream", [True, False])
    def test_shutdown_timeout_ends_exchange_with_one_error(self, tmp_path, stream):
        document = {"listen": {"port": 0, "shutdown_timeout_s": 0.3}}
        fault = Ok(token_interval_s=5) if stream else Hang()
        with (
            FakeBackend(fault) as backend,
            serving(tmp_path, {**document, "backends": backends(backend)}) as proxy,
        ):
            with proxy.connect() as client:
                client.sendall(raw(chat(stream=stream)))
                got = read_until(client, b"data: ") if stream else b""
                backend.wait_until(lambda: backend.requests)
                proxy.signal(signal.SIGTERM)
                got += read_all(client)
            assert b"shutting_down" in got
            assert (b" 503 " in got) != stream
            assert b"[DONE]" not in got
            assert proxy.process.wait(30) == 0

    def test_second_signal_ends_process_at_once(self, tmp_path):
        with (
            started(tmp_path, Hang(), shutdown_timeout_s=600) as (proxy, backend),
            proxy.connect() as client,
            proxy.connect() as idle,
        ):
            client.sendall(raw(chat()))
            backend.wait_until(lambda: backend.requests)
            proxy.signal(signal.SIGTERM)
            assert idle.recv(1) == b""  # the first signal has arrived: two pending signals would merge
            assert proxy.process.poll() is None
            proxy.signal(signal.SIGTERM)
            assert proxy.process.wait(30) == 0


class TestWorkers:
    def test_dead_worker_is_replaced_and_all_end_together(self, tmp_path):
        document = {"listen": {"port": 0, "workers": 2}}
        with (
            FakeBackend() as backend,
            serving(tmp_path, {**document, "backends": backends(backend)}) as proxy,
        ):
            assert proxy.told["workers"] == 2
            within(30, lambda: len(children(proxy.process.pid)) == 2)
            before = children(proxy.process.pid)
            assert proxy.ask(chat())[0] == 200
            os.kill(before[0], signal.SIGKILL)
            within(30, lambda: len(now := children(proxy.process.pid)) == 2 and before[0] not in now)
            assert {proxy.ask(chat())[0] for _ in range(10)} == {200}
            proxy.signal(signal.SIGTERM)
            assert proxy.process.wait(30) == 0
            assert "worker 0" in proxy.errors() or "worker 1" in proxy.errors()

    def test_terminal_interrupt_finishes_streams(self, tmp_path):
        with started(tmp_path, Ok(token_interval_s=0.2), workers=2) as (proxy, _):
            within(30, lambda: len(children(proxy.process.pid)) == 2)
            with proxy.connect() as client:
                client.sendall(raw(chat(stream=True)))
                got = read_until(client, b"data: ")
                os.killpg(proxy.process.pid, signal.SIGINT)
                assert b"[DONE]" in got + read_all(client)
            assert proxy.process.wait(30) == 0

    def test_reload_reaches_all_workers_and_invalid_file_reaches_none(self, tmp_path):
        with started(tmp_path, Ok(), workers=2) as (proxy, _), FakeBackend() as other:
            within(30, lambda: len(children(proxy.process.pid)) == 2)
            document = {"listen": {"port": 0, "workers": 2}, "backends": backends(other)}
            document["backends"]["replicas"][0]["name"] = "new"
            proxy.write(document)
            proxy.signal(signal.SIGHUP)

            def asked():
                return {proxy.ask(chat())[1]["agentguard-replica"] for _ in range(8)}

            within(30, lambda: asked() == {"new"})
            proxy.write({"nonsense": True})
            proxy.signal(signal.SIGHUP)
            for pid in children(proxy.process.pid):
                os.kill(pid, signal.SIGKILL)  # following requests use the last valid configuration
            within(30, lambda: len(children(proxy.process.pid)) == 2)
            assert asked() == {"new"}

    def test_workers_end_with_their_parent(self, tmp_path):
        document = {"listen": {"port": 0, "workers": 2}}
        with (
            FakeBackend() as backend,
            serving(tmp_path, {**document, "backends": backends(backend)}) as proxy,
        ):
            within(30, lambda: len(children(proxy.process.pid)) == 2)
            workers = children(proxy.process.pid)
            proxy.process.kill()
            within(30, lambda: not any(map(alive, workers)))

    def test_failed_start_ends_all_workers(self, tmp_path):
        replica = {"name": "a", "url": "https://models.example/v1", "api_key_env": "NO_SUCH_VARIABLE_HERE"}
        document = {"listen": {"port": 0, "workers": 2}, "backends": {"replicas": [replica]}}
        with pytest.raises(AssertionError, match="NO_SUCH_VARIABLE_HERE"), serving(tmp_path, document):
            pass


def test_output_is_one_json_line(proxy):
    assert set(proxy.told) == {"url", "base_url", "workers"}
    assert proxy.told["base_url"] == f"http://127.0.0.1:{proxy.port}/v1"


def rss(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(one) for one in file.read().split()]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
