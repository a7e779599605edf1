"""The proxy as its operators see it: real processes, real backends, a real collector."""

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

from agentguard.testing.fake_backend import FaultBackend, Ok, StatusFault
from tests.otlp_receiver import receiving
from tests.postgres import postgres, postgres_url  # noqa: F401
from tests.proxy_server import CHAT, chat, serving, within
from tests.unit.integrations import openai_responses_server, openai_server
from tests.unit.server.proxy.guard.scripted_model import CHAT as CHAT_API
from tests.unit.server.proxy.guard.scripted_model import RESPONSES as RESPONSES_API
from tests.unit.server.proxy.guard.scripted_model import calls

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
    with FaultBackend() as one, FaultBackend() as other:
        yield one, other


@pytest.fixture(scope="module")
def operated(two, tmp_path_factory):
    """A proxy of two workers with everything on, the folder with what it wrote, and its collector."""
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
    """A connection to each worker of the proxy."""
    with contextlib.ExitStack() as stack:
        yield doors_of_both(stack, proxy, **bearer(READ))


def caught_up(doors) -> None:
    """Wait until each worker has been told what the other one knows now: that takes about a second."""
    now = [uptimes(door)[number] for number, door in enumerate(doors)]
    within(30, lambda: all(uptimes(doors[1 - number]).get(number, 0) > at for number, at in enumerate(now)))


def uptimes(door) -> dict[int, float]:
    """The age of each worker when it said last how it does: by itself now, by others a while ago."""
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
    def test_without_a_key_nothing_is_told(self, proxy, path, method):
        code, _, body = proxy.ask(method=method, path=path)
        assert code == 401
        assert b"b0" not in body

    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    def test_health_needs_no_key_and_tells_no_more(self, proxy, path):
        code, _, body = proxy.ask(method="GET", path=path)
        assert code == 200
        assert set(json.loads(body)) <= {"ok", "ready", "why"}

    def test_each_scope_opens_its_own(self, proxy):
        for secret, path, method, expected in (
            (CALL, "/status", "GET", 403),
            (READ, "/agentguard/v1/replicas/b0/drain", "POST", 403),
            (READ, CHAT, "POST", 403),
            (ADMIN, "/status", "GET", 200),
        ):
            body = chat() if path == CHAT else None
            assert proxy.ask(body, method=method, path=path, **bearer(secret))[0] == expected

    def test_answers_are_bound_for_a_browser(self, proxy):
        _, headers, body = proxy.ask(method="GET", path="/status", Accept="text/html", **bearer(READ))
        assert headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert b"<script" not in body
        assert b"b0" in body


class TestDescription:
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

    def test_no_route_takes_an_address_or_a_command(self, proxy):
        _, _, body = proxy.ask(method="GET", path="/agentguard/v1/openapi.json", **bearer(READ))
        names = {
            one["name"]
            for methods in json.loads(body)["paths"].values()
            for operation in methods.values()
            for one in operation.get("parameters", ())
        }
        assert names == {"name", "id", "most"}


class TestMetrics:
    def test_whichever_worker_is_asked_answers_for_all(self, proxy, doors):
        within(30, lambda: total(metrics(proxy), "agentguard_workers") == 2)
        caught_up(doors)  # else a request of another test may be counted only after this look
        before = total(metrics(proxy), "agentguard_requests_total", tenant="t")
        for _ in range(30):  # a connection each, so that both workers get some
            assert proxy.ask(chat(), **bearer(CALL))[0] == 200
        expected = before + 30
        within(30, lambda: total(metrics(proxy), "agentguard_requests_total", tenant="t") == expected)
        found = metrics(proxy)
        assert total(found, "agentguard_replica_state", state="up") == 2
        assert total(found, "agentguard_tokens_total", kind="output") > 0
        within(30, lambda: total(metrics(proxy), "agentguard_capture_kept_total") >= 30)
        assert total(found, "agentguard_capture_lost_total") == 0
        assert len(status(proxy)["workers"]) == 2

    def test_counts_do_not_fall_when_a_worker_dies(self, proxy, doors):
        for _ in range(10):
            assert proxy.ask(chat(), **bearer(CALL))[0] == 200
        caught_up(doors)  # what a worker has not told yet is lost with it
        before = total(metrics(proxy), "agentguard_requests_total")
        pids = {one["pid"] for one in status(proxy)["workers"]}
        os.kill(min(pids), signal.SIGKILL)
        within(30, lambda: len({one["pid"] for one in status(proxy)["workers"]} - {min(pids)}) == 2)
        assert total(metrics(proxy), "agentguard_requests_total") >= before

    def test_names_that_clients_make_up_are_one_label(self, proxy, two, doors):
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
    def test_a_drained_replica_gets_nothing_from_any_worker(self, proxy, two):
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

    def test_there_is_no_replica_of_another_name(self, proxy):
        for name in ("none", "..%2f..", "b0%00"):
            path = f"/agentguard/v1/replicas/{name}/drain"
            assert proxy.ask(method="POST", path=path, **bearer(ADMIN))[0] == 404


def _states(proxy, name: str) -> list[str]:
    """As each worker tells it; one that has just begun has not yet."""
    return [_state(one, name) for one in status(proxy)["workers"]]


def _state(worker: dict, name: str) -> str:
    return next(one["state"] for one in worker["pool"]["replicas"] if one["name"] == name)


class TestSessions:
    def test_a_run_is_seen_by_its_tenant_alone(self, proxy, doors):
        ask = chat(tools=TOOLS)
        _, headers, _ = proxy.ask(ask, Agentguard_Run="mine", **bearer(ADMIN))
        run = headers["agentguard-run"]

        def seen(secret: str) -> set:
            _, _, body = proxy.ask(method="GET", path="/agentguard/v1/sessions", **bearer(secret))
            return {one["id"] for one in json.loads(body)["sessions"]}

        caught_up(doors)  # the other worker has heard of it
        path = f"/agentguard/v1/sessions/{run}"
        for _ in range(8):  # whichever answers
            assert run in seen(ADMIN)
            assert run not in seen(OTHER)
            code, _, body = proxy.ask(method="GET", path=path, **bearer(ADMIN))
            assert (code, json.loads(body)["id"]) == (200, run)
            assert proxy.ask(method="GET", path=path, **bearer(OTHER))[0] == 404
            assert run not in json.dumps(status(proxy))


class TestUi:
    def test_a_browser_shows_its_key_once(self, proxy):
        code, headers, body = proxy.ask(method="GET", path=f"/ui/?token={READ}&q=1")
        assert (code, headers["location"]) == (303, "/ui/?q=1")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert READ not in cookie
        pair = cookie.partition(";")[0]
        for _ in range(6):  # whichever worker answers
            code, headers, body = proxy.ask(method="GET", path="/ui/", Cookie=pair)
            assert code == 200
        assert "content-security-policy" in headers
        assert b"/ui/static/" in body

    @pytest.mark.parametrize(
        "cookie",
        ["", "read~9999999999.00", "read~99999999999999999.00", "x", "read~1.00", "~.", "admin~9999999999."],
    )
    def test_a_cookie_that_is_made_up_opens_nothing(self, proxy, cookie):
        assert proxy.ask(method="GET", path="/ui/", Cookie=f"agentguard_ui={cookie}")[0] == 401

    def test_a_key_without_the_scope_opens_nothing(self, proxy):
        assert proxy.ask(method="GET", path="/ui/", **bearer(CALL))[0] == 403
        assert proxy.ask(method="GET", path=f"/ui/?token={READ}x")[0] == 401


class TestTelling:
    def test_a_span_goes_to_the_collector_within_the_clients_trace(self, operated, two):
        proxy, _, collector = operated
        for one in two:
            one.requests.clear()
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert proxy.ask(chat(), traceparent=parent, **bearer(CALL))[0] == 200
        asked = [*two[0].requests, *two[1].requests]
        assert asked
        for seen in asked:  # two of them where an answer is late, and the other replica is asked as well
            told = seen.get_header("traceparent")
            assert told is not None
            assert told.startswith("00-0af7651916cd43dd8448eb211c80319c-")
            assert "b7ad6b7169203331" not in told

        def received() -> bool:
            return "0af7651916cd43dd8448eb211c80319c" in collector.log.read_text()

        within(30, received)

    def test_no_key_is_anywhere(self, operated):
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

    def test_logs_hold_lines_of_all_workers_and_nothing_but_json(self, operated):
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
    """The lines of requests, of a log that holds nothing but JSON; one that is being written is left out."""
    whole = log.read_text().rpartition("\n")[0] if log.exists() else ""
    return [line for line in map(json.loads, whole.splitlines()) if line["event"] == "request"]


class TestGuardrail:
    PATH = "/beta/litellm_basic_guardrail_api"

    def test_litellms_key_is_taken_and_a_request_judged(self, proxy):
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


def test_a_proxy_hears_of_trouble_that_another_found(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        bad, good = (stack.enter_context(FaultBackend()) for _ in range(2))
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
        for _ in range(10):  # and leaves it alone without having asked it once
            assert other.ask(chat())[0] == 200


def test_a_proxy_without_its_database_serves_on(tmp_path: Path) -> None:
    with FaultBackend() as backend:
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
            assert json.loads(body)["workers"][0]["shared"]["database"] == "postgresql"


def test_a_run_that_was_taken_back_stays_so_at_another_machine(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two proxies over PostgreSQL: what one rewrote, the other goes on rewriting."""
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
            "guard": policy,
            "cluster": {"store": database, "lookup_timeout_s": 5, "health_hints": False},
        }
        doors = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            proxy = stack.enter_context(serving(tmp_path / name, document))
            doors.append(stack.enter_context(contextlib.closing(connection(proxy))))
        history: list = [{"role": "user", "content": "Book seat 4."}]
        replies = []
        for turn in range(5):  # to and fro between them
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
    """A configuration under which runs go on at any proxy or worker."""
    return {
        "listen": {"port": 0, "shutdown_timeout_s": 1, **listen},
        "backends": {"replicas": [{"name": "m", "url": server.url}], "health": "off"},
        "guard": {
            "localizer": {"name": "first_finding"},
            "recover": {"on_fail": ["rollback"]},
            "tools": {"book": {"effect": "write"}, "find": {"effect": "read"}},
        },
        "cluster": {"store": store, "lookup_timeout_s": 5, "health_hints": False},
    }


def test_what_one_machine_saw_done_another_does_not_let_be_done_again(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Though the client has dropped it from its history: the ledger of effects is in PostgreSQL."""
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
def test_a_run_that_is_told_by_the_response_before_goes_on_anywhere(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The Responses API: the client tells what is new, and names the response that it goes on from."""
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
        for turn in range(6):  # to and fro between them
            body = {**RESPONSES_API.body(given), **({"previous_response_id": before} if before else {})}
            head, made = asked(doors[turn % 2], "/v1/responses", body)
            before, given = made["id"], [RESPONSES_API.result(id, "none") for id in RESPONSES_API.calls(made)]
            heads.append(head)
            within(30, lambda turn=turn: written(doors[turn % 2]))
    assert any("agentguard-recoveries" in head for head in heads)
    shown = json.dumps(model.seen[-1])
    assert [id for id in ours if f'"{id}"' in shown] == ["find0", "b", "f4"], "what was taken back stays so"
    assert "Book seat 4." in shown


def test_a_key_that_reaches_one_worker_of_two_has_all_of_its_limit(tmp_path: Path) -> None:
    limited = {**key("call", CALL, "call"), "limits": {"requests_per_minute": 6}}
    with FaultBackend() as backend, contextlib.ExitStack() as stack:
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


def test_whichever_worker_is_asked_lists_the_runs_of_all(tmp_path: Path) -> None:
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
    """Headers and answer of a request on a connection that stays."""
    door.request("POST", path, json.dumps(body))
    answer = door.getresponse()
    head, said = {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    assert answer.status == 200, said
    return head, json.loads(said)


def written(door: http.client.HTTPConnection) -> bool:
    """Whether the worker behind a connection has told the database all: it does so behind the requests."""
    door.request("GET", "/status")
    told = json.loads(door.getresponse().read())
    (mine,) = (one for one in told["workers"] if one["worker"] == told["answered_by"])
    return mine["shared"]["ok"] and not mine["shared"]["waiting"]


def doors_of_both(stack: contextlib.ExitStack, proxy, **headers: str) -> list[http.client.HTTPConnection]:
    """A connection to each of two workers."""
    found: dict[int, http.client.HTTPConnection] = {}

    def both() -> bool:
        """The first worker answers while the other one may still be starting; either takes a connection."""
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
