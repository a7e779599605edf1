"""Access control of every page, for a browser, a program and an attacker."""

import http.client
import re

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.security_middleware import (
    CONTENT_SECURITY_POLICY,
    MAX_BODY_BYTES,
    MAX_TARGET_BYTES,
    _parse_host,
)
from agentguard_server.viewer.settings import ViewerSettings
from hypothesis import given, settings, strategies as st
from starlette.testclient import TestClient

from agentguard.errors import ConfigError
from agentguard.store import Store
from agentguard.trajectory.model import Trajectory

TOKEN = "correct horse battery staple"
HERE = "http://127.0.0.1:7430"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store.open(tmp_path_factory.mktemp("s") / "s.db") as opened:
        opened.write_run(Trajectory(id="r", format="f", task="t", steps=())).wait(10)
        yield opened


@pytest.fixture
def open_client(store):
    return TestClient(build_app(store), base_url=HERE, follow_redirects=False)


@pytest.fixture
def guarded(store):
    settings = ViewerSettings(host="0.0.0.0", token=TOKEN)
    return TestClient(build_app(store, settings), base_url="http://viewer.example:80", follow_redirects=False)


@pytest.mark.parametrize(
    ("path", "status"), [("/", 200), ("/nothing", 404), ("/static/base.css", 200), ("/api/nothing", 404)]
)
def test_every_response_has_security_headers(open_client, path, status):
    for method in ("GET", "HEAD"):
        answer = open_client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "cache-control" in answer.headers


def test_content_security_policy_forbids_inline_and_remote_content():
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert not re.search(r"https?:|\*", CONTENT_SECURITY_POLICY)


def test_error_page_has_security_headers(store, monkeypatch):
    app = build_app(store)
    monkeypatch.setattr(type(store), "list_run_summaries", lambda *_, **__: 1 / 0)
    answer = TestClient(app, base_url=HERE, raise_server_exceptions=False).get("/")
    assert answer.status_code == 500
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "ZeroDivisionError" in answer.text
    assert "division by zero" not in answer.text  # an error message may contain any text


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7430", "localhost", "LOCALHOST:1", "[::1]:7430", "localhost.", "127.8.8.8"]
)
def test_local_parse_hosts_are_accepted(open_client, host):
    assert open_client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:7430",
        "192.168.0.7", "127.0.0.1@evil.example", "127.0.0.1/x", "0.0.0.0", "", "127.0.0.1:99999", "[::1",
        "a b", "127.0.0.1#",
    ],
)  # fmt: skip
def test_other_parse_hosts_are_rejected_on_loopback(open_client, host):
    answer = open_client.get("/", headers={"host": host})
    assert answer.status_code in (400, 421)
    assert "<" not in answer.text


def test_two_host_headers_are_rejected(open_client):
    answer = open_client.get("/", headers=[("host", "127.0.0.1"), ("host", "evil.example")])
    assert answer.status_code == 400


@given(st.text(max_size=40))
@settings(max_examples=300)
def test_host_header_is_parsed_or_rejected(text):
    name = _parse_host(text)
    assert name is None or ("@" not in name and "/" not in name)


def test_public_address_requires_token(guarded):
    for path in ("/", "/static/base.css", "/events", "/api/runs", "/runs/r"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    with pytest.raises(ConfigError, match="token is needed"):
        ViewerSettings(host="0.0.0.0")


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä" * 50])
def test_wrong_token_is_rejected(guarded, wrong):
    assert guarded.get("/", params={"token": wrong}).status_code == 401
    bearer = f"Bearer {wrong}".encode()
    assert guarded.get("/", headers={"authorization": bearer}).status_code == 401
    assert guarded.get("/", headers={"cookie": f"agentguard_view={wrong}".encode()}).status_code == 401


def test_link_moves_token_to_cookie(guarded):
    answer = guarded.get("/", params={"verdict": "failed", "token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?verdict=failed"
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Strict" in kept
    assert "Path=/" in kept
    assert "Secure" not in kept
    assert TOKEN not in kept
    assert guarded.get("/").status_code == 200  # the client keeps the cookie
    again = guarded.get("/runs/a%2Fb", params={"token": TOKEN})
    assert (again.status_code, again.headers["location"]) == (303, "/runs/a%2Fb")
    guarded.cookies.clear()
    assert guarded.get("/").status_code == 401


def test_redirect_stays_on_same_host(guarded):
    answer = guarded.get("http://viewer.example//evil.example/x", params={"token": TOKEN})
    assert answer.headers["location"] == "/evil.example/x"


def test_bearer_token_is_accepted(guarded):
    assert guarded.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.get("/", headers={"authorization": f"bearer  {TOKEN} "}).status_code == 200
    assert guarded.get("/", headers={"authorization": f"Basic {TOKEN}"}).status_code == 401


def test_https_sets_secure_cookie(store):
    settings = ViewerSettings(host="0.0.0.0", token=TOKEN)
    client = TestClient(build_app(store, settings), base_url="https://viewer.example", follow_redirects=False)
    assert "; Secure" in client.get("/", params={"token": TOKEN}).headers["set-cookie"]


FORM = {"subject": "diagnosis", "subject_id": "d", "right": "yes"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://127.0.0.1:7430.evil.example"},
        {"origin": "http://127.0.0.1:7430", "sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:7430", "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "file://127.0.0.1:7430"},
        {"origin": "http://[::1"},
        {"authorization": "Bearer x"},
    ],
)
def test_cross_site_form_is_rejected(open_client, headers):
    assert open_client.post("/runs/r/judge", data=FORM, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"origin": HERE}, {"sec-fetch-site": "same-origin"}, {"origin": HERE, "sec-fetch-site": "same-origin"}],
)
def test_same_origin_form_is_accepted(open_client, headers):
    answer = open_client.post("/runs/r/judge", data=FORM, headers=headers)
    assert answer.status_code == 400  # there is no such diagnosis: the request was read
    assert "no such diagnosis" in answer.text


def test_bearer_token_may_write(guarded):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.post("/runs/r/judge", data=FORM, headers=bearer).status_code == 400
    guarded.get("/", params={"token": TOKEN})
    assert guarded.post("/runs/r/judge", data=FORM).status_code == 403  # a cookie alone does not suffice


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "X"])
def test_other_methods_are_rejected(open_client, method):
    assert open_client.request(method, "/").status_code == 405


def test_options_allows_no_other_origin(open_client):
    answer = open_client.options("/", headers={"origin": "http://evil.example"})
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/..%5capp.py",
        "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/runs.css%00.js", "/static/", "/static/.",
        "/static/runs.css/../../app.py", "/runs.css", "/templates/base.html",
    ],
)  # fmt: skip
def test_only_assets_are_served(open_client, path):
    answer = open_client.get(path)
    assert answer.status_code in (400, 404)
    assert "import" not in answer.text


def test_oversized_requests_are_rejected(open_client):
    assert open_client.get("/runs/a%00b").status_code == 400
    assert open_client.get("/?q=" + "a" * MAX_TARGET_BYTES).status_code == 414
    assert open_client.get("/runs/" + "a" * MAX_TARGET_BYTES).status_code == 414
    assert open_client.get("/?" + "&".join(f"verdict={i}" for i in range(500))).status_code == 200
    large = b"note=" + b"x" * MAX_BODY_BYTES
    assert open_client.post("/runs/r/judge", content=large, headers={"origin": HERE}).status_code == 413

    def parts():
        yield b"note="
        for _ in range(MAX_BODY_BYTES // 1024 + 1):
            yield b"x" * 1024

    client = TestClient(open_client.app, base_url=HERE, raise_server_exceptions=False)
    assert client.post("/runs/r/judge", content=parts(), headers={"origin": HERE}).status_code >= 400
    bad = {"origin": HERE, "content-length": "-1"}
    assert client.post("/runs/r/judge", content=b"x", headers=bad).status_code == 413


def test_websockets_are_rejected(open_client):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), open_client.websocket_connect("/events"):
        pass


def test_assets_are_cached_by_content_hash(open_client):
    page = open_client.get("/").text
    (url,) = re.findall(r'"(/static/runs\.css\?v=[0-9a-f]+)"', page)
    first = open_client.get(url)
    assert "immutable" in first.headers["cache-control"]
    assert first.headers["content-type"].startswith("text/css")
    assert first.headers["content-encoding"] == "gzip"
    plain = open_client.get(url, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == first.text
    again = open_client.get("/static/runs.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert open_client.get("/static/runs.css?v=old").headers["cache-control"] == "no-cache"


def test_prefix_is_supported(store):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    settings = ViewerSettings(host="0.0.0.0", token=TOKEN, prefix="/ui")
    app = Starlette(routes=[Mount("/ui", build_app(store, settings))])
    client = TestClient(app, base_url="http://proxy.example", follow_redirects=False)
    answer = client.get("/ui/?token=" + TOKEN.replace(" ", "+"))
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/ui")
    assert "Path=/ui" in answer.headers["set-cookie"]
    page = client.get("/ui/")
    assert page.status_code == 200
    links = re.findall(r'(?:href|src|action|data-events)="(/[^"]*)"', page.text)
    assert links
    assert all(one.startswith("/ui/") for one in links)
    for one in {link for link in links if "/static/" in link}:
        assert client.get(one).status_code == 200
    assert client.get("/ui/nothing").status_code == 404
    assert client.get("/ui/api/nothing").headers["content-type"] == "application/json"


def test_tokens_of_two_viewers_on_one_machine_coexist(store):
    names = set()
    for token in ("a" * 20, "b" * 20):
        client = TestClient(
            build_app(store, ViewerSettings(token=token)), base_url=HERE, follow_redirects=False
        )  # fmt: skip
        names.add(client.get("/", params={"token": token}).headers["set-cookie"].partition("=")[0])
    assert len(names) == 2


def test_unavailable_store_error_names_remedy(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        client = TestClient(build_app(store), base_url=HERE)
        store._database.invalidate()
        (tmp_path / "s.db").unlink()
        (tmp_path / "s.db").mkdir()
        answer = client.get("/")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "reload this page" in answer.text
        assert client.get("/api/runs").json()["remedy"]


def test_error_responses_are_short(open_client):
    assert http.client.responses[421]
    assert len(open_client.get("/", headers={"host": "evil.example"}).content) < 400
