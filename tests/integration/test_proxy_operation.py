"""Operation of the proxy: real processes, real backends, a real collector."""

import contextlib
import hashlib
import http.client
import json
import os
import signal
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentguard.testing.fake_backend import FakeBackend, Ok, StatusFault
from tests.otlp_receiver import receiving
from tests.postgres import postgres, postgres_url  # noqa: F401
from tests.proxy_server import CHAT, chat, serving, within
from tests.unit.integrations import openai_responses_server, openai_server
from tests.unit.server.proxy.guard.scripted_model import CHAT as CHAT_API, RESPONSES as RESPONSES_API, calls

pytestmark = pytest.mark.slow

CALL, READ, ADMIN, OTHER = (
    f"ag-c4nary-{name}-0123456789abcdef" for name in ("call", "read", "admin", "other")
)
BACKEND_KEY = "sk-c4nary-backend-0123456789abcdef"
CANARIES = ("c4nary", "0123456789abcdef")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def key(name: str, secret: str, *scopes: str, tenant: str = "t") -> dict:
    hashed = "sha256:" + hashlib.sha256(secret.encode()).hexdigest()
    return {"name": name, "hash": hashed, "scopes": list(scopes), "tenant": tenant}


KEYS = [
    key("call", CALL, "call"),
    key("read", READ, "read"),
    key("admin", ADMIN, "admin", "call"),
    key("other", OTHER, "call", "read", tenant="other"),
]


def bearer(secret: str) -> dict:
    return {"Authorization": f"Bearer {secret}"}


def replicas(*backends, **more) -> dict:
    given = [{"name": f"b{n}", "url": one.url, **more} for n, one in enumerate(backends)]
    return {"replicas": given, "health": "off", "load_balancing": "round_robin"}


@pytest.fixture(scope="module")
def two():
    with FakeBackend() as one, FakeBackend() as other:
        yield one, other


@pytest.fixture(scope="module")
def operated(two, tmp_path_factory):
    """Start a proxy of two workers with every feature on; return it, its output folder and its collector."""
    folder = tmp_path_factory.mktemp("operated")
    with receiving(folder) as collector:
        document = {
            "listen": {"port": 0, "workers": 2, "shutdown_timeout_s": 2},
            "keys": KEYS,
            "backends": replicas(*two, api_key_env="BACKEND_KEY"),
            "guard": {},
            "capture": {"store": str(folder / "runs.db")},
            "logs": {"output": str(folder / "log"), "level": "debug"},
            "tracing": {"endpoint": collector.url, "flush_interval_s": 0.2, "headers_env": "OTLP_KEYS"},
            "cluster": {},
        }
        environment = {"BACKEND_KEY": BACKEND_KEY, "OTLP_KEYS": f"x-key={BACKEND_KEY}"}
        with serving(folder, document, **environment) as proxy:
            yield proxy, folder, collector


@pytest.fixture
def proxy(operated):
    return operated[0]


@pytest.fixture
def doors(proxy):
    """Open a connection to each worker of the proxy."""
    with contextlib.ExitStack() as stack:
        yield doors_of_both(stack, proxy, **bearer(READ))


def caught_up(doors) -> None:
    """Wait until each worker has received the other worker's current state, which takes about a second."""
    now = [uptimes(door)[number] for number, door in enumerate(doors)]
    within(30, lambda: all(uptimes(doors[1 - number]).get(number, 0) > at for number, at in enumerate(now)))


def uptimes(door) -> dict[int, float]:
    """Return the age of each worker at its last report: now for this worker, earlier for others."""
    door.request("GET", "/status", headers=bearer(READ))
    told = json.loads(door.getresponse().read())
    return {one["worker"]: one["uptime_s"] for one in told["workers"]}


def metrics(proxy) -> dict:
    status, headers, body = proxy.ask(method="GET", path="/metrics", **bearer(READ))
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def total(found: dict, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (one, held), value in found.items() if one == name and wanted <= set(held))


def status(proxy, secret: str = READ) -> dict:
    code, _, body = proxy.ask(method="GET", path="/status", **bearer(secret))
    assert code == 200
    return json.loads(body)


class TestAdmission:
    PATHS = (
        "/metrics", "/status", "/agentguard/v1/replicas", "/agentguard/v1/sessions",
        "/agentguard/v1/sessions/x", "/agentguard/v1/openapi.json", "/agentguard/v1/anything",
        "/ui/", "/ui/runs", "/", "/anything",
    )  # fmt: skip

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
    def test_missing_key_is_rejected(self, proxy, path, method):
        code, _, body = proxy.ask(method=method, path=path)
        assert code == 401
        assert b"b0" not in body

    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    def test_health_needs_no_key_and_reveals_nothing(self, proxy, path):
        code, _, body = proxy.ask(method="GET", path=path)
        assert code == 200
        assert set(json.loads(body)) <= {"ok", "ready", "why"}

    def test_each_scope_opens_its_own_routes(self, proxy):
        for secret, path, method, expected in (
            (CALL, "/status", "GET", 403),
            (READ, "/agentguard/v1/replicas/b0/drain", "POST", 403),
            (READ, CHAT, "POST", 403),
            (ADMIN, "/status", "GET", 200),
        ):
            body = chat() if path == CHAT else None
            assert proxy.ask(body, method=method, path=path, **bearer(secret))[0] == expected

    def test_browser_responses_have_security_headers(self, proxy):
        _, headers, body = proxy.ask(method="GET", path="/status", Accept="text/html", **bearer(READ))
        assert headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert b"<script" not in body
        assert b"b0" in body


class TestOpenApi:
    def test_every_route_is_described_and_answers(self, proxy):
        _, _, body = proxy.ask(method="GET", path="/agentguard/v1/openapi.json", **bearer(READ))
        described = json.loads(body)
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                assert operation["summary"]
                if method == "get":
                    real = path.replace("{name}", "b0").replace("{id}", "none")
                    code, _, _ = proxy.ask(method="GET", path=real, **bearer(ADMIN))
                    assert str(code) in operation["responses"]

    def test_no_route_accepts_an_address_or_a_command(self, proxy):
        _, _, body = proxy.ask(method="GET", path="/agentguard/v1/openapi.json", **bearer(READ))
        names = {
            one["name"]
            for methods in json.loads(body)["paths"].values()
            for operation in methods.values()
            for one in operation.get("parameters", ())
        }
        assert names == {"name", "id", "most"}


class TestMetrics:
    def test_metrics_of_each_worker_cover_all_workers(self, proxy, doors):
        within(30, lambda: total(metrics(proxy), "agentguard_workers") == 2)
        caught_up(doors)  # otherwise a request of another test may be counted after this point
        before = total(metrics(proxy), "agentguard_requests_total", tenant="t")
        for _ in range(30):  # a connection each, so that both workers get some
            assert proxy.ask(chat(), **bearer(CALL))[0] == 200
        expected = before + 30
        within(30, lambda: total(metrics(proxy), "agentguard_requests_total", tenant="t") == expected)
        found = metrics(proxy)
        assert total(found, "agentguard_replica_state", state="up") == 2
        assert total(found, "agentguard_tokens_total", kind="output") > 0
        within(30, lambda: total(metrics(proxy), "agentguard_capture_accepted_total") >= 30)
        assert total(found, "agentguard_capture_dropped_total") == 0
        assert len(status(proxy)["workers"]) == 2

    def test_counters_survive_death_of_a_worker(self, proxy, doors):
        for _ in range(10):
            assert proxy.ask(chat(), **bearer(CALL))[0] == 200
        caught_up(doors)  # a killed worker loses what it has not yet reported
        before = total(metrics(proxy), "agentguard_requests_total")
        pids = {one["pid"] for one in status(proxy)["workers"]}
        os.kill(min(pids), signal.SIGKILL)
        within(30, lambda: len({one["pid"] for one in status(proxy)["workers"]} - {min(pids)}) == 2)
        assert total(metrics(proxy), "agentguard_requests_total") >= before

    def test_client_values_share_one_label(self, proxy, two, doors):
        for one in two:
            one.set_script(StatusFault(status=404))
        try:
            for number in range(5):
                proxy.ask(chat() | {"model": f"made-up-{number}"}, **bearer(CALL))
        finally:
            for one in two:
                one.set_script(Ok())
        caught_up(doors)
        _, _, body = proxy.ask(method="GET", path="/metrics", **bearer(READ))
        assert b"made-up" not in body


class TestReplicas:
    def test_drained_replica_gets_no_requests_from_any_worker(self, proxy, two):
        path = "/agentguard/v1/replicas/b0"
        code, _, body = proxy.ask(method="POST", path=f"{path}/drain", **bearer(ADMIN))
        assert (code, json.loads(body)["replica"]["state"]) == (202, "draining")
        try:
            within(30, lambda: _states(proxy, "b0") == ["draining"] * proxy.told["workers"])
            two[0].requests.clear()
            answered = {proxy.ask(chat(), **bearer(CALL))[1]["agentguard-replica"] for _ in range(20)}
            assert answered == {"b1"}
            assert len(two[0].requests) == 0
        finally:
            assert proxy.ask(method="POST", path=f"{path}/undrain", **bearer(ADMIN))[0] == 202
        within(30, lambda: _states(proxy, "b0") == ["up"] * proxy.told["workers"])
        answered = {proxy.ask(chat(), **bearer(CALL))[1]["agentguard-replica"] for _ in range(20)}
        assert answered == {"b0", "b1"}

    def test_unknown_replica_is_not_found(self, proxy):
        for name in ("none", "..%2f..", "b0%00"):
            path = f"/agentguard/v1/replicas/{name}/drain"
            assert proxy.ask(method="POST", path=path, **bearer(ADMIN))[0] == 404


def _states(proxy, name: str) -> list[str]:
    """Return the state as each worker reports it; a new worker may not have reported yet."""
    return [_state(one, name) for one in status(proxy)["workers"]]


def _state(worker: dict, name: str) -> str:
    return next(one["state"] for one in worker["pool"]["replicas"] if one["name"] == name)


class TestSessions:
    def test_run_is_visible_only_to_its_tenant(self, proxy, doors):
        ask = chat(tools=TOOLS)
        _, headers, _ = proxy.ask(ask, Agentguard_Run="mine", **bearer(ADMIN))
        run = headers["agentguard-run"]

        def seen(secret: str) -> set:
            _, _, body = proxy.ask(method="GET", path="/agentguard/v1/sessions", **bearer(secret))
            return {one["id"] for one in json.loads(body)["sessions"]}

        caught_up(doors)  # the other worker has received it
        path = f"/agentguard/v1/sessions/{run}"
        for _ in range(8):  # any worker may answer
            assert run in seen(ADMIN)
            assert run not in seen(OTHER)
            code, _, body = proxy.ask(method="GET", path=path, **bearer(ADMIN))
            assert (code, json.loads(body)["id"]) == (200, run)
            assert proxy.ask(method="GET", path=path, **bearer(OTHER))[0] == 404
            assert run not in json.dumps(status(proxy))


class TestUi:
    def test_browser_exchanges_its_key_for_a_cookie(self, proxy):
        code, headers, body = proxy.ask(method="GET", path=f"/ui/?token={READ}&q=1")
        assert (code, headers["location"]) == (303, "/ui/?q=1")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert READ not in cookie
        pair = cookie.partition(";")[0]
        for _ in range(6):  # any worker may answer
            code, headers, body = proxy.ask(method="GET", path="/ui/", Cookie=pair)
            assert code == 200
        assert "content-security-policy" in headers
        assert b"/ui/static/" in body

    @pytest.mark.parametrize(
        "cookie",
        ["", "read~9999999999.00", "read~99999999999999999.00", "x", "read~1.00", "~.", "admin~9999999999."],
    )
    def test_forged_cookie_is_rejected(self, proxy, cookie):
        assert proxy.ask(method="GET", path="/ui/", Cookie=f"agentguard_ui={cookie}")[0] == 401

    def test_key_without_scope_is_rejected(self, proxy):
        assert proxy.ask(method="GET", path="/ui/", **bearer(CALL))[0] == 403
        assert proxy.ask(method="GET", path=f"/ui/?token={READ}x")[0] == 401


class TestTelemetry:
    def test_span_reaches_collector_within_client_trace(self, operated, two):
        proxy, _, collector = operated
        for one in two:
            one.requests.clear()
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert proxy.ask(chat(), traceparent=parent, **bearer(CALL))[0] == 200
        asked = [*two[0].requests, *two[1].requests]
        assert asked
        for seen in asked:  # two attempts if a late answer causes a hedge
            told = seen.get_header("traceparent")
            assert told is not None
            assert told.startswith("00-0af7651916cd43dd8448eb211c80319c-")
            assert "b7ad6b7169203331" not in told

        def received() -> bool:
            return "0af7651916cd43dd8448eb211c80319c" in collector.log.read_text()

        within(30, received)

    def test_no_output_contains_a_key(self, operated):
        proxy, folder, collector = operated
        secrets = {"authorization": f"Bearer {CALL}", "X-Other": BACKEND_KEY, "Cookie": f"a={BACKEND_KEY}"}
        ask = chat(text=f"my key is {BACKEND_KEY}", tools=TOOLS)
        for path in (CHAT, f"{CHAT}?key={BACKEND_KEY}", f"/v1/none?key={BACKEND_KEY}"):
            proxy.ask(ask, path=path, **secrets)
        proxy.ask(b"{" + BACKEND_KEY.encode(), **secrets)
        for wrong in (f"{CALL}x", BACKEND_KEY):
            proxy.ask(ask, **bearer(wrong))
        within(30, lambda: requests_in(folder / "log"))
        time.sleep(2.5)
        shown = [
            (folder / "log").read_text(),
            collector.log.read_text(),
            json.dumps(status(proxy)),
            proxy.ask(method="GET", path="/metrics", **bearer(READ))[2].decode(),
            proxy.ask(method="GET", path="/agentguard/v1/sessions", **bearer(READ))[2].decode(),
        ]
        for text in shown:
            assert not [word for word in CANARIES if word in text]
        assert '"event":"request"' in shown[0]

    def test_log_contains_json_lines_of_all_workers(self, operated):
        proxy, folder, _ = operated
        with contextlib.ExitStack() as stack:
            asked = set()
            for door in doors_of_both(stack, proxy, **bearer(READ)):  # so that each has a line to write
                door.request("POST", CHAT, json.dumps(chat()), bearer(CALL))
                answer = door.getresponse()
                answer.read()
                asked.add(answer.headers["agentguard-request"])

        def told() -> list[dict]:
            return [line for line in requests_in(folder / "log") if line["id"] in asked]

        within(30, lambda: len(told()) == 2)
        assert {line["worker"] for line in told()} == {0, 1}
        for line in told():
            assert {"id", "status", "replica", "seconds", "model", "tenant"} <= set(line)


def requests_in(log: Path) -> list[dict]:
    """Return the request lines of a log that contains only JSON, except an incomplete last line."""
    whole = log.read_text().rpartition("\n")[0] if log.exists() else ""
    return [line for line in map(json.loads, whole.splitlines()) if line["event"] == "request"]


class TestGuardrail:
    PATH = "/beta/litellm_basic_guardrail_api"

    def test_litellm_key_is_accepted_and_request_is_judged(self, proxy):
        asked = {
            "input_type": "request",
            "litellm_call_id": "c1",
            "structured_messages": [{"role": "user", "content": "hi"}],
            "texts": ["hi"],
            "request_data": {},
            "model": "m",
        }
        code, _, body = proxy.ask(asked, path=self.PATH, **{"x-api-key": CALL})
        assert (code, json.loads(body)) == (200, {"action": "NONE"})
        assert proxy.ask(asked, path=self.PATH)[0] == 401
        assert proxy.ask(asked, path=self.PATH, **bearer(READ))[0] == 403
        assert proxy.ask(b"{}", path=self.PATH, **bearer(CALL))[0] == 400


def test_health_hint_reaches_another_proxy(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        bad, good = (stack.enter_context(FakeBackend()) for _ in range(2))
        bad.set_script(StatusFault(status=500))
        shared = {"store": str(tmp_path / "shared.db"), "poll_interval_s": 0.1}
        document = {
            "backends": replicas(bad, good),
            "cluster": shared,
            "listen": {"port": 0, "shutdown_timeout_s": 1},
        }
        proxies = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            proxies.append(stack.enter_context(serving(tmp_path / name, document)))
        one, other = proxies
        for _ in range(40):
            one.ask(chat())

        def heard() -> bool:
            _, _, body = other.ask(method="GET", path="/status")
            states = {r["name"]: r for r in json.loads(body)["workers"][0]["pool"]["replicas"]}
            return states["b0"]["hinted_s"] is not None

        within(30, heard)
        assert len(bad.requests) > 0
        for _ in range(10):  # and excludes it without a request to it
            assert other.ask(chat())[0] == 200


def test_proxy_serves_without_its_database(tmp_path: Path) -> None:
    with FakeBackend() as backend:
        away = "postgresql://u:p@127.0.0.1:1/none"
        document = {
            "backends": replicas(backend),
            "cluster": {"store": away},
            "listen": {"port": 0, "shutdown_timeout_s": 1},
        }
        with serving(tmp_path, document) as proxy:
            for _ in range(5):
                assert proxy.ask(chat())[0] == 200
            within(30, lambda: b'what="hints"} 0' not in proxy.ask(method="GET", path="/metrics")[2])
            assert proxy.ask(method="GET", path="/readyz")[0] == 200
            _, _, body = proxy.ask(method="GET", path="/status")
            assert json.loads(body)["workers"][0]["cluster"]["database"] == "postgresql"


def test_rollback_persists_at_another_machine(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Two proxies over PostgreSQL: the second continues the rewriting of the first."""
    database = request.getfixturevalue("postgres_url")
    turns = iter([*calls("find", 3), ("call", "book", "b"), ("say", "Done.")])
    policy = {
        "localizer": {"name": "first_finding"},
        "recover": {"on_fail": ["rollback"]},
        "tools": {"book": {"effect": "write"}, "find": {"effect": "read"}},
    }
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(openai_server.serving(lambda _: CHAT_API.answer(next(turns))))
        replica = {"name": "m", "url": server.url}
        document = {
            "listen": {"port": 0, "shutdown_timeout_s": 1},
            "backends": {"replicas": [replica], "health": "off"},
            "guard": {"policy": policy},
            "cluster": {"store": database, "lookup_timeout_s": 5, "health_hints": False},
        }
        doors = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            proxy = stack.enter_context(serving(tmp_path / name, document))
            doors.append(stack.enter_context(contextlib.closing(connection(proxy))))
        history: list = [{"role": "user", "content": "Book seat 4."}]
        replies = []
        for turn in range(5):  # alternates between the two
            head, made = asked(doors[turn % 2], CHAT, CHAT_API.body(history))
            replies.append(head)
            message = made["choices"][0]["message"]
            history.append(message)
            called = message.get("tool_calls") or ()
            history.extend(CHAT_API.result(call["id"], "nothing found") for call in called)
            within(30, lambda turn=turn: written(doors[turn % 2]))
    assert message["content"] == "Done."
    last = json.dumps(server.bodies[-1])
    assert [id for id in ("find0", "find1", "find2", "b") if f'"{id}"' in last] == ["find0", "b"]
    assert "[guard]" in last
    assert any("agentguard-recoveries" in head for head in replies)


def moving(server, store: str, **listen) -> dict:
    """Return a configuration under which any proxy or worker can continue a run."""
    return {
        "listen": {"port": 0, "shutdown_timeout_s": 1, **listen},
        "backends": {"replicas": [{"name": "m", "url": server.url}], "health": "off"},
        "guard": {
            "policy": {
                "localizer": {"name": "first_finding"},
                "recover": {"on_fail": ["rollback"]},
                "tools": {"book": {"effect": "write"}, "find": {"effect": "read"}},
            },
        },
        "cluster": {"store": store, "lookup_timeout_s": 5, "health_hints": False},
    }


def test_effect_of_one_machine_is_not_repeated_at_another(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The client has removed the call from its history, but the effect ledger is in PostgreSQL."""
    database = request.getfixturevalue("postgres_url")
    turns = iter([
        ("call", "book", "call_1a2b3c4d5e6f", "4"), ("call", "find", "call_6f5e4d3c2b1a", "x"),
        ("call", "book", "call_00ff11ee22dd", "4"), ("say", "It is booked."),
    ])  # fmt: skip
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(openai_server.serving(lambda _: CHAT_API.answer(next(turns))))
        proxies = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            proxies.append(stack.enter_context(serving(tmp_path / name, moving(server, database))))
        history: list = [{"role": "user", "content": "Book seat 4."}]
        for _ in range(2):
            message = json.loads(proxies[0].ask(CHAT_API.body(history))[2])["choices"][0]["message"]
            history += [message, CHAT_API.result(message["tool_calls"][0]["id"], "booked as 77")]
        with contextlib.closing(connection(proxies[0])) as door:
            within(30, lambda: written(door))
        del history[1:3]
        made = json.loads(proxies[1].ask(CHAT_API.body(history))[2])
        assert CHAT_API.text(made) == "It is booked."
        assert "already taken effect" in json.dumps(server.bodies[-1])
        assert "booked as 77" in json.dumps(server.bodies[-1])


@pytest.mark.parametrize("where", ["two machines", "two workers"])
def test_run_with_previous_response_id_continues_at_any_worker(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Responses API: the client sends only new items and names the previous response."""
    ours = ("find0", "find1", "find2", "b", "f4")
    with contextlib.ExitStack() as stack:
        model = openai_responses_server.Model(
            [openai_responses_server.called("find" if id != "b" else "book", id, where=place)]
            for id, place in zip((*ours, "f5"), ["aisle"] * 3 + ["4", "door", "exit"], strict=True)
        )
        server = stack.enter_context(openai_server.serving(model))
        if where == "two machines":
            database = request.getfixturevalue("postgres_url")
            doors = []
            for name in ("one", "other"):
                (tmp_path / name).mkdir()
                proxy = stack.enter_context(serving(tmp_path / name, moving(server, database)))
                doors.append(stack.enter_context(contextlib.closing(connection(proxy))))
        else:
            document = moving(server, str(tmp_path / "shared.db"), workers=2)
            proxy = stack.enter_context(serving(tmp_path, document))
            doors = doors_of_both(stack, proxy)
        given: list = [{"role": "user", "content": "Book seat 4."}]
        before, heads = None, []
        for turn in range(6):  # alternates between the two
            body = {**RESPONSES_API.body(given), **({"previous_response_id": before} if before else {})}
            head, made = asked(doors[turn % 2], "/v1/responses", body)
            before, given = made["id"], [RESPONSES_API.result(id, "none") for id in RESPONSES_API.calls(made)]
            heads.append(head)
            within(30, lambda turn=turn: written(doors[turn % 2]))
    assert any("agentguard-recoveries" in head for head in heads)
    shown = json.dumps(model.seen[-1])
    assert [id for id in ours if f'"{id}"' in shown] == ["find0", "b", "f4"], "what was taken back stays so"
    assert "Book seat 4." in shown


def test_rate_limit_is_complete_under_uneven_worker_load(tmp_path: Path) -> None:
    limited = {**key("call", CALL, "call"), "limits": {"requests_per_minute": 6}}
    with FakeBackend() as backend, contextlib.ExitStack() as stack:
        document = {
            "listen": {"port": 0, "shutdown_timeout_s": 1, "workers": 2},
            "backends": replicas(backend),
            "keys": [limited, key("read", READ, "read")],
        }
        doors = doors_of_both(stack, stack.enter_context(serving(tmp_path, document)), **bearer(READ))
        got = []
        for door in (doors[0], *[doors[1]] * 4, doors[0], doors[0], doors[1]):
            door.request("POST", CHAT, json.dumps(chat()), bearer(CALL))
            answer = door.getresponse()
            answer.read()
            got.append(answer.status)
        assert got == [200] * 6 + [429] * 2


def test_session_list_of_each_worker_covers_all_workers(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(openai_server.serving(lambda _: CHAT_API.answer(("say", "ok"))))
        document = moving(server, str(tmp_path / "shared.db"), workers=2)
        doors = doors_of_both(stack, stack.enter_context(serving(tmp_path, document)))
        runs = []
        for number in (0, 1, 0, 1, 1):
            head, _ = asked(doors[number], CHAT, CHAT_API.body([{"role": "user", "content": "hi"}]))
            runs.insert(0, (head["agentguard-run"], number))

        def listed(door: http.client.HTTPConnection, most: int) -> list[tuple[str, int]]:
            door.request("GET", f"/agentguard/v1/sessions?most={most}")
            found = json.loads(door.getresponse().read())["sessions"]
            return [(one["id"], one["worker"]) for one in found]

        for door in doors:
            within(30, lambda door=door: listed(door, 100) == runs)
            assert listed(door, 2) == runs[:2]


def connection(proxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)


def asked(door: http.client.HTTPConnection, path: str, body: dict) -> tuple[dict, dict]:
    """Return headers and answer of a request on a persistent connection."""
    door.request("POST", path, json.dumps(body))
    answer = door.getresponse()
    head, said = {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    assert answer.status == 200, said
    return head, json.loads(said)


def written(door: http.client.HTTPConnection) -> bool:
    """Return whether a connection's worker has written all state to the database."""
    door.request("GET", "/status")
    told = json.loads(door.getresponse().read())
    (mine,) = (one for one in told["workers"] if one["worker"] == told["answered_by"])
    return mine["cluster"]["ok"] and not mine["cluster"]["waiting"]


def doors_of_both(stack: contextlib.ExitStack, proxy, **headers: str) -> list[http.client.HTTPConnection]:
    """Return a connection to each of two workers."""
    found: dict[int, http.client.HTTPConnection] = {}

    def both() -> bool:
        """Try until both workers have one connection each; the second worker may start late."""
        door = connection(proxy)
        door.request("GET", "/status", headers=headers)
        number = json.loads(door.getresponse().read())["answered_by"]
        if number in found:
            door.close()
        else:
            found[number] = stack.enter_context(contextlib.closing(door))
        return len(found) == 2

    within(60, both)
    return [found[0], found[1]]
