"""Authorization: keys, scopes, rate limits, and web origins without keys."""

import asyncio
import hashlib

import pytest
from agentguard_server.proxy.auth.authorization import Keyring, generate_key
from agentguard_server.proxy.auth.shared_counters import SharedCounters
from agentguard_server.proxy.config.schema import ClientLimits, KeyOptions
from agentguard_server.proxy.errors import ProxyError
from hypothesis import given, strategies as st

from tests.unit.server.proxy.harness import ask, asked, gateway


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


KEYS = [
    {"name": "caller", "hash": hashed("ag-call"), "tenant": "a"},
    {"name": "reader", "hash": hashed("ag-read"), "scopes": ["read"]},
    {"name": "admin", "hash": hashed("ag-admin"), "scopes": ["admin"]},
]
ROUTES = [
    ("POST", "/v1/chat/completions"), ("POST", "/v1/messages"), ("GET", "/v1/models"), ("GET", "/metrics"),
    ("GET", "/status"), ("DELETE", "/agentguard/v1/replicas/a"), ("GET", "/nothing"), ("POST", "/"),
    ("OPTIONS", "/v1/chat/completions"), ("GET", "//healthz"), ("GET", "/healthz/"),
    ("GET", "/healthz/../status"), ("GET", "/%68ealthz"), ("POST", "/V1/chat/completions"),
    ("POST", "/v1/../healthz"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("key", [None, "", "wrong", "ag-call2", "x" * 600, hashed("ag-call")])
def test_unknown_key_is_rejected_on_every_route(method, path, key):
    gate = gateway(keys=KEYS)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    got = ask(gate, method=method, path=path, **headers)
    assert got.status == 401
    assert got.headers["www-authenticate"] == "Bearer"
    assert not gate.pool.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer ag-call"},
        {"Authorization": "bearer  ag-call "},
        {"X_Api_Key": "ag-call"},
        {"Api_Key": "ag-call"},
    ],
)
def test_sdk_key_headers_are_accepted_and_removed(headers):
    gate = gateway(keys=KEYS)
    assert ask(gate, **headers).status == 200
    assert gate.pool.asked[0].headers == ()


@pytest.mark.parametrize(
    ("key", "method", "path", "status"),
    [
        ("ag-call", "POST", "/v1/chat/completions", 200),
        ("ag-call", "GET", "/v1/models", 200),
        ("ag-call", "GET", "/status", 403),
        ("ag-call", "DELETE", "/agentguard/v1/replicas/a", 403),
        ("ag-read", "POST", "/v1/chat/completions", 403),
        ("ag-read", "GET", "/v1/models", 403),
        ("ag-read", "GET", "/status", 404),
        ("ag-read", "POST", "/agentguard/v1/replicas/a/drain", 403),
        ("ag-admin", "GET", "/status", 404),
        ("ag-admin", "POST", "/agentguard/v1/replicas/a/drain", 404),
        ("ag-admin", "POST", "/v1/chat/completions", 403),
    ],
)
def test_key_is_limited_to_its_scopes(key, method, path, status):
    assert ask(gateway(keys=KEYS), method=method, path=path, Authorization=f"Bearer {key}").status == status


def test_two_keys_in_one_request_are_rejected():
    async def main():
        gate = gateway(keys=KEYS)
        got = await asked(gate, Authorization="Bearer ag-call", authorization="Bearer ag-call")
        assert got.status == 401

    asyncio.run(main())


class TestWithoutKeys:
    @pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173"])
    def test_local_origin_is_allowed(self, origin):
        assert ask(gateway(), Origin=origin).status == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Host": "evil.example"},
            {"Host": "localhost.evil.example"},
            {"Host": "a@127.0.0.1"},
            {"Host": "["},
            {"Sec_Fetch_Site": "cross-site"},
        ],
    )
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/agentguard/v1/replicas/a/drain"])
    def test_web_origin_is_rejected(self, headers, path):
        gate = gateway()
        assert ask(gate, path=path, **headers).status == 403
        assert not gate.pool.asked

    def test_allow_unauthenticated_admits_other_hosts(self):
        gate = gateway(listen={"host": "0.0.0.0", "allow_unauthenticated": True})
        assert ask(gate, Host="models.internal").status == 200

    def test_provider_key_of_client_is_forwarded(self):
        gate = gateway()
        ask(gate, Authorization="Bearer of-a-provider", X_Api_Key="k")
        assert gate.pool.asked[0].headers == (
            (b"authorization", b"Bearer of-a-provider"),
            (b"x-api-key", b"k"),
        )


class TestLimits:
    def test_requests_per_minute_are_limited(self):
        gate = gateway(keys=[{**KEYS[0], "limits": {"requests_per_minute": 3}}])
        got = [ask(gate, Authorization="Bearer ag-call") for _ in range(4)]
        assert [one.status for one in got] == [200, 200, 200, 429]
        assert 1 <= int(got[-1].headers["retry-after"]) <= 20
        assert got[-1].json["error"]["type"] == "rate_limit_error"

    def test_concurrent_requests_are_limited(self):
        async def main():
            gate = gateway(None, keys=[{**KEYS[0], "limits": {"max_concurrent": 1}}])
            first = asyncio.create_task(asked(gate, Authorization="Bearer ag-call"))
            while not gate.pool.asked:
                await asyncio.sleep(0)
            assert (await asked(gate, Authorization="Bearer ag-call")).status == 429
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            gate.pool.answers = gateway().pool.answers
            assert (await asked(gate, Authorization="Bearer ag-call")).status == 200

        asyncio.run(main())

    def test_reload_keeps_used_limits(self):
        options = (KeyOptions(name="k", hash=hashed("x"), limits=ClientLimits(requests_per_minute=2)),)
        counters = SharedCounters()
        before, after = (Keyring(options, counters=counters).find(b"x") for _ in range(2))
        before.acquire(10.0)
        before.acquire(10.0)
        with pytest.raises(ProxyError, match="requests_per_minute") as refused:
            after.acquire(10.0)
        assert refused.value.retry_after_s == pytest.approx(30)

    @given(
        st.integers(1, 100),
        st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=80),
    )
    def test_minute_admits_at_most_twice_the_limit(self, limit, gaps):
        """A bucket admits its burst at once and its refill later: at most twice the limit in any minute."""
        options = KeyOptions(name="k", hash=hashed("x"), limits=ClientLimits(requests_per_minute=limit))
        caller, now, let_in = Keyring([options]).find(b"x"), 1000.0, []
        for gap in gaps:
            now += gap
            try:
                caller.acquire(now)
            except ProxyError as refused:
                now += refused.retry_after_s + 1e-6
                caller.acquire(now)
            let_in.append(now)
        for at in let_in:
            assert sum(at <= one < at + 60 for one in let_in) <= 2 * limit + 1


def test_new_key_is_stored_only_as_hash():
    key, digest = generate_key()
    assert key.startswith("ag-")
    assert len(key) > 40
    ring = Keyring([KeyOptions(name="k", hash=digest)])
    assert ring.find(key.encode()).name == "k"
    assert ring.find(digest.encode()) is None
    assert key not in repr(ring.__dict__)
    assert generate_key()[0] != key
