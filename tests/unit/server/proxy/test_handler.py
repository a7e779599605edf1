"""One request through the application: the upstream request, the response and the telemetry."""

import asyncio
import json

import pytest
from agentguard_server.proxy.requests.response_affinity import ResponseAffinity

from agentguard.backends.base import Response, UpstreamError
from agentguard.backends.load_balancer import NoReplica
from agentguard.errors import (
    BackendError,
    CircuitOpen,
    DeadlineExceeded,
    Overloaded,
    RetriesExhausted,
    Stalled,
)
from agentguard.resilience.base import RequestPriority
from tests.unit.server.proxy.harness import (
    JSON,
    Stream,
    Told,
    ask,
    asked,
    gateway,
    head_of,
    serving,
)

CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


@pytest.mark.parametrize(("path", "api"), APIS.items())
def test_model_api_body_is_forwarded_unchanged(path, api):
    gate, body = gateway(), b'{ "model":"m" , "x": 1.50 }'
    got = ask(gate, body, path=path + "?a=%20b")
    (request,) = gate.pool.asked
    assert (got.status, got.body, got.headers["content-length"]) == (200, b"{}", "2")
    assert (request.target, request.method, request.body) == (path[3:] + "?a=%20b", "POST", body)
    assert (request.api.name, request.model, request.stream, request.idempotent) == (api, "m", False, True)


@pytest.mark.parametrize(
    ("method", "path", "idempotent"),
    [
        ("GET", "/v1/models", True),
        ("GET", "/v1/responses/resp_1", True),
        ("DELETE", "/v1/responses/resp_1", True),
        ("POST", "/v1/responses/resp_1/cancel", False),
        ("POST", "/v1/messages/count_tokens", False),
        ("GET", "/v1/chat/completions", True),
    ],
)
def test_unknown_api_passes_through(method, path, idempotent):
    gate = gateway()
    ask(gate, b"not JSON", method=method, path=path)
    (request,) = gate.pool.asked
    assert (request.target, request.method, request.body, request.api) == (
        path[3:],
        method,
        b"not JSON",
        None,
    )
    assert request.idempotent is idempotent


def test_proxy_and_connection_headers_are_not_forwarded():
    gate = gateway()
    ask(
        gate, Connection="close, X-Hop", X_Hop="1", Keep_Alive="5", Te="trailers", Accept_Encoding="gzip",
        Expect="x", Agentguard_Run="r", Agentguard_Future="x", Cookie="a=b", X_Kept="1", Traceparent="t",
    )  # fmt: skip
    (request,) = gate.pool.asked
    assert request.headers == ((b"x-kept", b"1"), (b"traceparent", b"t"))


def test_client_options_reach_pool():
    gate = gateway()
    body = {"model": "m", "stream": True, "user": "someone"}
    ask(gate, body, Agentguard_Quorum="3", Agentguard_Priority="sheddable")
    ask(gate, body, Agentguard_Run="run-1")
    ask(gate, body, Agentguard_Run="off")
    first, second, third = gate.pool.asked
    assert (first.quorum_size, first.priority, first.session_id) == (3, RequestPriority.SHEDDABLE, "someone")
    assert (second.quorum_size, second.priority, second.session_id) == (1, RequestPriority.CRITICAL, "run-1")
    assert third.session_id == "someone"


@pytest.mark.parametrize(
    "headers",
    [{"Agentguard_Quorum": "0"}, {"Agentguard_Quorum": "99"}, {"Agentguard_Quorum": "x"},
     {"Agentguard_Priority": "high"}, {"Agentguard_Run": "a b"}, {"Agentguard_Run": "x" * 129}],
)  # fmt: skip
def test_invalid_proxy_header_is_rejected(headers):
    gate = gateway()
    got = ask(gate, **headers)
    assert (got.status, got.json["error"]["code"]) == (400, "invalid_header")
    assert not gate.pool.asked


@pytest.mark.parametrize(
    "body", [b"", b"nope", b"[]", b'{"a":' + b"[" * 5000, b'{"model": NaN}', b"\xff\xfe"]
)
def test_body_that_is_not_a_json_object_is_rejected_in_api_format(body):
    gate = gateway()
    for path in APIS:
        got = ask(gate, body, path=path)
        error = got.json["error"]
        assert (got.status, error["type"]) == (400, "invalid_request_error")
        assert ("code" in error) == (path != "/v1/messages")
        assert ("request_id" in got.json) == (path == "/v1/messages")
    assert not gate.pool.asked


def test_encoded_body_is_rejected():
    assert ask(gateway(), Content_Encoding="gzip").status == 415


@pytest.mark.parametrize("path", ["/v1/../x", "/v1/%2e%2e/x", "/v1//x", "/v1/a%2fb", "/v1/a\\b", "/v1/a%00"])
def test_malformed_path_is_rejected(path):
    gate = gateway()
    assert ask(gate, path=path).status == 404
    assert not gate.pool.asked


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("TRACE", "/v1/x", 405),
        ("CONNECT", "/v1/x", 501),
        ("M-SEARCH", "/v1/x", 405),
        ("GET", "/v1/x?a=\\b", 400),
        ("GET", "/v1/x?a=\x7f", 400),
    ],
)
def test_unsendable_request_does_not_reach_pool(method, path, status):
    gate = gateway()
    got = ask(gate, method=method, path=path)
    assert got.status == status
    assert ("POST" in got.headers.get("allow", "")) == (status == 405), "RFC 9110, 15.5.6"
    assert not gate.pool.asked


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BackendError("reset"), 502, "backend_error"),
        (DeadlineExceeded("slow"), 504, "deadline_exceeded"),
        (Stalled("silent"), 504, "stalled"),
        (CircuitOpen("open"), 503, "circuit_open"),
        (Overloaded("full", retry_after_s=1.2), 503, "overloaded"),
        (RetriesExhausted("in vain", attempts=3, last=DeadlineExceeded("slow")), 504, "retries_exhausted"),
    ],
)
@pytest.mark.parametrize("path", APIS)
def test_failed_call_is_reported_in_api_format(error, status, code, path):
    got = ask(gateway(error), path=path)
    assert got.status == status
    assert got.headers["content-type"] == "application/json"
    assert got.headers["agentguard-request"]
    if path == "/v1/messages":
        assert got.json["type"] == "error"
        assert set(got.json["error"]) == {"type", "message"}
        assert got.json["request_id"] == got.headers["agentguard-request"]
    else:
        assert got.json["error"]["code"] == code
        assert set(got.json["error"]) == {"message", "type", "param", "code"}
    assert got.headers.get("retry-after") == ("2" if code == "overloaded" else None)


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("again", [False, True])
def test_unknown_model_is_not_found_instead_of_unavailable(path, again):
    error = NoReplica()
    got = ask(gateway(RetriesExhausted("no", attempts=2, last=error) if again else error), path=path)
    assert (got.status, got.headers.get("retry-after")) == (404, None)
    if path == "/v1/messages":
        assert (got.json["type"], got.json["error"]["type"]) == ("error", "not_found_error")
    else:
        told = got.json["error"]
        assert (told["type"], told["code"]) == ("invalid_request_error", "model_not_found")


@pytest.mark.parametrize("path", APIS)
def test_model_with_drained_replicas_recovers(path):
    got = ask(gateway(NoReplica(is_drained=True)), path=path)
    assert (got.status, got.headers["retry-after"]) == (503, "5")
    assert got.json["error"]["type"] == ("overloaded_error" if path == "/v1/messages" else "server_error")


@pytest.mark.parametrize("again", [False, True])
def test_endpoint_error_is_forwarded_unchanged(again):
    answer = Response(
        status=429, headers=((b"retry-after", b"7"), *JSON), body=b'{"error": {"x": 1}}', replica="a"
    )
    error = UpstreamError(answer)
    got = ask(gateway(RetriesExhausted("no", attempts=2, last=error) if again else error))
    assert (got.status, got.body, got.headers["retry-after"]) == (429, answer.body, "7")
    assert got.headers.get("agentguard-upstream") == ("attempts=2" if again else None)


def test_stream_is_forwarded_in_chunks_and_closed():
    answer = Stream(CHUNK, CHUNK, DONE)
    got = ask(gateway(answer), {"stream": True})
    assert (got.status, got.body, got.ended) == (200, CHUNK * 2 + DONE, True)
    assert got.headers["agentguard-replica"] == "a"
    assert answer.closed


@pytest.mark.parametrize("path", APIS)
def test_interrupted_stream_ends_with_one_api_error(path):
    answer = Stream(CHUNK, BackendError("cut", stage="committed"))
    got = ask(gateway(answer), {"stream": True}, path=path)
    assert got.ended
    event = got.body.removeprefix(CHUNK)
    assert event.count(b"\n\n") == 1
    assert event.endswith(b"\n\n")
    assert b"[DONE]" not in event
    name, _, data = event.rpartition(b"data: ")
    assert name == (b"event: error\n" if path in ("/v1/messages", "/v1/responses") else b"")
    told = json.loads(data)
    assert "cut" in json.dumps(told)
    assert (told.get("type") == "error") == bool(name)


def test_interrupted_body_is_cut():
    answer = Stream(b"half", BackendError("cut", stage="committed"), headers=JSON)
    got = ask(gateway(answer), method="GET", path="/v1/files/f/content")
    assert (got.status, got.body, got.ended) == (200, b"half", False)


class TestClientDisconnect:
    def test_disconnect_before_answer_cancels_call(self):
        told = Told()
        gate = gateway(None, recorders=(told,))
        got = ask(gate, leaves=lambda _: bool(gate.pool.asked))
        assert gate.pool.cancelled
        assert (got.status, gate.in_flight_count) == (0, 0)
        assert (told[0].status, told[0].error_code, told[0].is_complete) == (499, "client_left", False)

    def test_disconnect_within_stream_cancels_call(self):
        told, answer = Told(), Stream(CHUNK, None)
        ask(gateway(answer, recorders=(told,)), {"stream": True}, leaves=lambda got: bool(got.body))
        assert answer.closed
        assert (told[0].status, told[0].response_body) == (499, CHUNK)

    def test_disconnect_before_whole_request_sends_nothing(self):
        told = Told()
        gate = gateway(recorders=(told,))
        got = ask(gate, b"{", declared=9, leaves=lambda _: gate.body_memory.buffered_bytes == 1)
        assert (got.status, told[0].status) == (0, 499)
        assert not gate.pool.asked


class TestShutdown:
    @pytest.mark.parametrize("stream", [False, True])
    def test_shutdown_ends_open_exchanges_with_one_error(self, stream):
        async def main():
            answer = Stream(CHUNK, None) if stream else None
            gate = gateway(answer)
            task = asyncio.create_task(asked(gate, {"stream": stream}))
            while not (answer.hangs if answer else gate.pool.asked):
                await asyncio.sleep(0)
            for exchange in list(gate.in_flight):
                exchange.cancel()
            return await task

        got = asyncio.run(main())
        assert got.status == (200 if stream else 503)
        assert b"shutting_down" in got.body
        assert got.ended

    def test_shutdown_rejects_new_requests(self):
        gate = gateway()
        gate.is_draining = True
        got = ask(gate)
        assert (got.status, got.headers["connection"], got.json["error"]["code"]) == (
            503,
            "close",
            "shutting_down",
        )

    def test_external_cancellation_propagates(self):
        async def main():
            gate = gateway(None)
            async with serving(gate) as (port, state):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head_of("POST", "/v1/chat/completions", {}, b"content-length: 2") + b"{}")
                while not gate.pool.asked:
                    await asyncio.sleep(0)
                (task,) = state.tasks
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                writer.close()
            assert gate.pool.cancelled
            assert gate.in_flight_count == 0

        asyncio.run(main())


LIMITS = {"max_body_bytes": 2048, "max_buffered_bytes": 4096}


class TestLimits:
    def test_too_long_declared_body_is_not_read(self):
        got = ask(gateway(limits=LIMITS), b"x" * 3000)
        assert (got.status, got.headers["connection"]) == (413, "close")

    def test_too_long_undeclared_body_is_rejected(self):
        got = ask(gateway(limits=LIMITS), b"", parts=[b"x" * 1000] * 5)
        assert got.status == 413

    def test_total_size_of_concurrent_bodies_is_limited(self):
        gate = gateway(limits=LIMITS)
        gate.body_memory.buffered_bytes = 4000
        got = ask(gate, b"", parts=[b"x" * 200, b"x"])
        assert (got.status, gate.body_memory.buffered_bytes) == (503, 4000)

    def test_slow_body_times_out(self):
        got = ask(gateway(limits={"body_timeout_s": 0.05}), b"{", declared=9)
        assert (got.status, got.headers["connection"]) == (408, "close")

    def test_concurrent_requests_are_limited(self):
        async def main():
            gate = gateway(None, limits={"max_requests": 1})
            task = asyncio.create_task(asked(gate))
            while not gate.pool.asked:
                await asyncio.sleep(0)
            got = await asked(gate)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (got.status, got.headers["retry-after"]) == (503, "1")

        asyncio.run(main())


class TestRecorders:
    def test_recorder_receives_answer(self):
        told = Told()
        answer = Response(status=200, headers=JSON, body=b'{"a":1}', replica="a", notes=(("attempts", "2"),))
        got = ask(
            gateway(answer, recorders=(told,)), {"model": "m"}, Agentguard_Run="r1", Authorization="Bearer s"
        )
        (one,) = told
        request = one.request
        assert (request.api, request.target) == ("chat", "/v1/chat/completions")
        assert (request.model, request.run_id) == ("m", "r1")
        assert (one.status, one.response_body, one.is_complete, one.replica, one.error_code) == (
            200,
            b'{"a":1}',
            True,
            "a",
            "",
        )
        assert one.notes == (("attempts", "2"),)
        assert one.time_to_first_byte_s is not None
        assert one.duration_s >= one.time_to_first_byte_s >= 0
        assert (got.headers["agentguard-upstream"], got.headers["agentguard-request"]) == (
            "attempts=2",
            one.request.request_id,
        )

    def test_recorder_of_a_proxy_error_receives_a_complete_response(self):
        told = Told()
        got = ask(gateway(recorders=(told,)), b"{")
        assert (got.status, told[0].error_code, told[0].is_complete) == (400, "invalid_json", True)

    def test_recorder_receives_truncated_stream(self):
        told = Told()
        ask(gateway(Stream(CHUNK * 50, DONE), recorders=(told,)), {"stream": True})
        assert len(told[0].response_body) == 1000
        assert told[0].request.stream

    def test_recorder_receives_rejection(self):
        told = Told()
        gate = gateway(recorders=(told,), keys=[{"name": "k", "hash": "sha256:" + "0" * 64}])
        ask(gate, b"never read", Authorization="Bearer wrong")
        assert (told[0].status, told[0].error_code, told[0].request.body) == (401, "invalid_api_key", b"")
        assert b"wrong" not in repr(told[0].request.headers).encode()

    def test_recorder_receives_internal_error_and_client_gets_error(self, caplog):
        told = Told()
        gate = gateway(recorders=(told,))
        gate.pool.answers = ["not an answer"]
        got = ask(gate)
        assert (got.status, got.json["error"]["code"]) == (500, "internal_error")
        assert told[0].error_code == "internal_error"


def test_own_paths_without_services_are_not_found():
    for path in ("/", "/status", "/healthz", "/metrics"):
        assert ask(gateway(), method="GET", path=path).status == 404


def test_head_response_has_length_without_body():
    answer = Response(status=200, headers=((b"content-length", b"42"),))
    assert ask(gateway(answer), method="HEAD", path="/v1/files/f").headers["content-length"] == "42"
    assert "content-length" not in ask(gateway(Response(status=204)), method="DELETE", path="/v1/x").headers


class TestStoredResponses:
    """Only the replica that has a response can continue it, so the load balancing policy is skipped."""

    BODY = b'{"id": "resp_1", "object": "response", "output": []}'
    EVENT = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'

    @pytest.mark.parametrize("stream", [False, True])
    def test_stored_response_requests_go_to_owning_replica(self, stream):
        answer = Stream(self.EVENT, CHUNK) if stream else Response(status=200, body=self.BODY, replica="a")
        gate = gateway(answer, Response(status=200, body=b"{}", replica="b"))
        ask(gate, {"stream": stream}, path="/v1/responses")
        ask(gate, {"previous_response_id": "resp_1"}, path="/v1/responses")
        ask(gate, method="POST", path="/v1/responses/resp_1/cancel")
        ask(gate, method="GET", path="/v1/responses/resp_1?x=1")
        ask(gate, method="GET", path="/v1/responses/resp_2")
        assert [one.pinned_replica for one in gate.pool.asked] == ["", "a", "a", "a", ""]

    def test_owner_cache_is_bounded(self):
        holders = ResponseAffinity()
        for number in range(20_001):
            assert holders.record(b'{"id": "resp_%d"}' % number, "a")
        assert (holders.lookup("resp_0"), holders.lookup("resp_1")) == ("", "a")
        assert not holders.record(b'{"id": "chatcmpl_1"}', "a")


class TestModels:
    def backends(self, *models):
        url = "http://127.0.0.1:1/v1"
        replicas = [{"name": f"r{n}", "url": url, "models": one} for n, one in enumerate(models)]
        return gateway(backends={"replicas": replicas})

    def test_configured_models_are_listed_by_client_names(self):
        gate = self.backends({"small": "qwen3", "large": "qwen3-max"}, {"small": "other"})
        got = ask(gate, method="GET", path="/v1/models")
        assert [one["id"] for one in got.json["data"]] == ["large", "small"]
        assert (got.json["object"], got.json["has_more"]) == ("list", False)
        assert ask(gate, method="GET", path="/v1/models/small").json["id"] == "small"
        missing = ask(gate, method="GET", path="/v1/models/qwen3")
        assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")
        assert not gate.pool.asked

    @pytest.mark.parametrize("models", [[{}], [{"a": "b"}, {}], [{"a": "b", "*": "*"}]])
    def test_model_list_of_open_replica_is_requested(self, models):
        gate = self.backends(*models)
        ask(gate, method="GET", path="/v1/models?limit=1")
        assert [one.target for one in gate.pool.asked] == ["/models?limit=1"]
