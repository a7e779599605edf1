import asyncio
from dataclasses import replace

import pytest

from agentguard.backends.load_balancer import NoReplica
from agentguard.errors import (
    BackendError,
    CircuitOpen,
    ConfigError,
    DeadlineExceeded,
    Overloaded,
    RetriesExhausted,
)
from agentguard.resilience import RequestPriority
from tests.unit.backends.pool_fixtures import (
    DONE,
    Scene,
    body,
    fail,
    hang,
    notes,
    ok,
    read,
    refuse,
    stream,
    texts,
)

FIRST = {"load_balancing": "priority"}
QUICK = {"retry": {"backoff": {"jitter": 0.0}}}


def test_successful_request_uses_one_replica_without_notes():
    scene = Scene(a=[ok()], b=[ok()], load_balancing="round_robin")

    async def main():
        answers = [await scene.ask() for _ in range(6)]
        assert sorted(answer.replica for answer in answers) == ["a"] * 3 + ["b"] * 3
        assert all(answer.notes == () for answer in answers)
        assert scene.counts() == {"a": 3, "b": 3}

    scene.run(main)


@pytest.mark.parametrize(
    "act", [fail(), fail("unsent"), refuse(500), refuse(503), refuse(429), body(b"<html>")]
)
def test_failure_before_first_token_fails_over(act):
    scene = Scene(a=[act], b=[ok()], **FIRST)

    async def main():
        answer = await scene.ask()
        assert (answer.replica, notes(answer)) == ("b", {"attempts": "2", "tried": "a,b"})
        assert scene.counts() == {"a": 1, "b": 1}

    scene.run(main)


def test_three_attempts_use_three_replicas():
    scene = Scene(a=[refuse(500)], b=[refuse(502)], c=[refuse(503)], d=[ok()], **FIRST)

    async def main():
        error = await scene.attempt()
        assert isinstance(error, RetriesExhausted)
        assert scene.counts() == {"a": 1, "b": 1, "c": 1, "d": 0}

    scene.run(main)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_caller_error_is_not_retried(status):
    scene = Scene(a=[refuse(status)], b=[ok()], **FIRST)

    async def main():
        error = await scene.attempt()
        assert (type(error).__name__, error.status) == ("UpstreamError", status)
        assert scene.counts() == {"a": 1, "b": 0}
        assert scene.pool.status()["replicas"][0]["last_errors"][0]["code"] == f"refused {status}"

    scene.run(main)


def test_request_with_effects_is_retried_only_if_unsent():
    async def counts(act):
        scene = Scene(a=[act], b=[ok()], **FIRST)
        return scene, lambda: scene.attempt(idempotent=False)

    for act, expected in ((fail("unsent"), 1), (fail(), 0), (refuse(500), 0), (refuse(429), 1)):
        scene = Scene(a=[act], b=[ok()], **FIRST)
        scene.run(lambda scene=scene: scene.attempt(idempotent=False))
        assert scene.counts()["b"] == expected


def test_retry_after_rests_replica_without_delaying_request():
    scene = Scene(a=[refuse(429, 20.0), ok()], b=[ok()], **FIRST)

    async def main():
        answer = await scene.ask()
        assert (answer.replica, scene.clock.now() < 1) == ("b", True)
        assert scene.pool.status()["replicas"][0]["state"] == "resting"
        assert (await scene.ask()).replica == "b"
        await scene.clock.sleep(21)
        assert (await scene.ask()).replica == "a"

    scene.run(main)


def test_retry_after_of_only_replica_is_awaited():
    scene = Scene(a=[refuse(429, 20.0), ok()])

    async def main():
        assert (await scene.ask()).replica == "a"
        assert scene.ones["a"].at[1] - scene.ones["a"].at[0] >= 20

    scene.run(main)


def test_negative_retry_after_stops_despite_other_replica():
    scene = Scene(a=[refuse(503, -1.0)], b=[ok()], **FIRST)

    async def main():
        assert isinstance(await scene.attempt(), RetriesExhausted)
        assert scene.counts()["b"] == 0

    scene.run(main)


def test_request_goes_to_replica_with_its_model_and_api():
    per = {"a": {"models": ["other"]}, "b": {"models": {"m": "served"}}, "c": {"apis": ["embeddings"]}}
    scene = Scene(a=[ok()], b=[ok()], c=[ok()], per=per)

    async def main():
        for _ in range(5):
            await scene.ask()
        assert scene.counts() == {"a": 0, "b": 5, "c": 0}
        sent = scene.ones["b"].asked[0]
        assert b'"model":"served"' in sent.body
        assert sent.body.endswith(b'"messages":[{"role":"user","content":"q"}]}')
        error = await scene.attempt(model="nobody's")
        assert (type(error), error.status, error.stage) == (NoReplica, 404, "unsent")
        assert scene.pool.models() == ["m", "other"]

    scene.run(main)


def test_wildcard_model_accepts_unknown_models():
    per = {"a": {"models": ["m"]}, "b": {"models": {"*": "*"}}, "c": {"models": {"*": "small"}}}
    scene = Scene(a=[ok()], b=[ok()], c=[ok()], per=per, **FIRST)

    async def main():
        assert (await scene.ask(model="new", body=b'{"model":"new"}')).replica == "b"
        assert scene.ones["b"].asked[0].body == b'{"model":"new"}'
        await scene.pool.drain("b")
        assert (await scene.ask(model="new", body=b'{"model":"new"}')).replica == "c"
        assert scene.ones["c"].asked[0].body == b'{"model":"small"}'

    scene.run(main)


def test_unknown_model_names_use_no_memory():
    scene = Scene(a=[ok(seconds=0)])

    async def main():
        for number in range(300):
            await scene.ask(model=f"made up {number}")
        assert len(scene.pool._load_balancer._candidates) == 1

    scene.run(main)


def test_passive_tier_is_used_only_if_active_tier_is_unavailable():
    per = {"a": {"priority": 0}, "b": {"priority": 1}}
    scene = Scene(a=[ok(), fail("unsent"), ok()], b=[ok()], per=per)

    async def main():
        assert (await scene.ask()).replica == "a"
        assert (await scene.ask()).replica == "b"
        assert (await scene.ask()).replica == "a"

    scene.run(main)


def test_failing_replica_is_ejected_and_returns():
    """LiteLLM #34836: 25 failures in a row do not remove a deployment there."""
    scene = Scene(
        a=[fail()] * 5 + [ok()], b=[ok()], load_balancing="round_robin", order={"circuit_breaker": "off"}
    )

    async def main():
        for _ in range(20):
            assert (await scene.ask()).replica == "b" or scene.ones["a"].script[0] is not None
        assert scene.counts()["a"] == 5
        assert scene.pool.status()["replicas"][0]["state"] == "ejected"
        assert scene.kinds()["eject"] == 1
        await scene.clock.sleep(31)
        for _ in range(4):
            await scene.ask()
        assert scene.counts()["a"] > 5
        assert scene.kinds()["readmit"] == 1

    scene.run(main)


def test_panic_uses_all_replicas():
    scene = Scene(
        a=[ok()],
        b=[ok()],
        c=[ok()],
        health={"interval_s": 1, "unhealthy_threshold": 1},
        load_balancing="round_robin",
    )

    async def main():
        for name in "ab":
            scene.ones[name].beat = fail()
        await scene.clock.sleep(3)
        answers = [await scene.ask() for _ in range(6)]
        assert {answer.replica for answer in answers} == {"a", "b", "c"}
        assert all(notes(answer) == {"panic": "1"} for answer in answers)
        assert scene.pool.status()["panic"] == ["*/chat"]
        scene.ones["a"].beat = ok(seconds=0)
        await scene.clock.sleep(5)
        answers = [await scene.ask() for _ in range(6)]
        assert {answer.replica for answer in answers} == {"a", "c"}
        assert scene.pool.status()["panic"] == []
        assert scene.kinds()["panic"] == 1

    scene.run(main)


def test_open_breaker_redirects_requests_without_cost():
    order = {"circuit_breaker": {"minimum_throughput": 4, "break_duration_s": 60}}
    scene = Scene(a=[refuse(500)], b=[ok()], load_balancing="round_robin", outlier="off", order=order)

    async def main():
        answers = [await scene.ask() for _ in range(20)]
        assert all(answer.replica == "b" for answer in answers)
        assert scene.counts()["a"] == 4
        assert notes(answers[-1]) == {}
        state = scene.pool.status()["replicas"][0]
        assert (state["state"], state["circuit_breaker"], state["breaker_opens_s"] > 50) == (
            "open",
            "open",
            True,
        )

    scene.run(main)


def test_all_breakers_open_rejects_fast_with_retry_after():
    order = {"circuit_breaker": {"minimum_throughput": 4, "break_duration_s": 60}, "retry": "off"}
    scene = Scene(a=[refuse(500)], outlier="off", order=order)

    async def main():
        for _ in range(4):
            await scene.attempt()
        before = scene.clock.now()
        error = await scene.attempt()
        assert isinstance(error, CircuitOpen)
        assert 50 < error.retry_after_s <= 60
        assert scene.clock.now() == before
        scene.ones["a"].script = [ok()]
        await scene.clock.sleep(61)
        assert (await scene.ask()).replica == "a"

    scene.run(main)


def test_full_replica_is_skipped_and_full_pool_rejects():
    per = {"a": {"max_concurrent": 1}, "b": {"max_concurrent": 2}}
    scene = Scene(a=[ok(seconds=5)], b=[ok(seconds=5)], per=per, order={"hedge": "off"})

    async def main():
        found = await asyncio.gather(*(scene.attempt() for _ in range(5)))
        assert scene.counts() == {"a": 1, "b": 2}
        assert sum(isinstance(one, Overloaded) for one in found) == 2

    scene.run(main)


def test_slow_first_token_is_hedged_and_loser_is_cancelled():
    usual = [ok(seconds=0.2 if n < 2 else 0.1) for n in range(30)]
    scene = Scene(a=[*usual, ok(seconds=9)], b=[ok(seconds=0.1)], load_balancing="priority")

    async def main():
        for _ in range(30):
            await scene.ask()
        began = scene.clock.now()
        answer = await scene.ask()
        assert (answer.replica, notes(answer)["hedged"]) == ("b", "1")
        assert scene.clock.now() - began < 0.45
        assert scene.ones["a"].cancelled[0] - began < 0.35

    scene.run(main)


def test_hedge_never_uses_the_same_replica():
    scene = Scene(a=[ok(seconds=0.1)] * 30 + [ok(seconds=9)])

    async def main():
        for _ in range(31):
            await scene.ask()
        assert scene.counts() == {"a": 31}

    scene.run(main)


def test_cancellation_reaches_endpoint_at_once():
    scene = Scene(a=[hang()])

    async def main():
        task = asyncio.create_task(scene.ask())
        await scene.clock.sleep(3)
        task.cancel()
        await asyncio.wait({task})
        assert scene.ones["a"].cancelled == [3.0]
        assert scene.pool.status()["inflight"] == 0
        assert scene.pool.status()["replicas"][0]["failed"] == {}

    scene.run(main)


def test_closed_stream_is_closed_at_endpoint():
    scene = Scene(a=[stream("one", "two", "three")])

    async def main():
        answer = await scene.ask(stream=True)
        await anext(answer)
        assert scene.pool.status()["inflight"] == 1
        await answer.aclose()
        assert scene.ones["a"].open == 0
        assert scene.pool.status()["inflight"] == 0

    scene.run(main)


def test_deadline_covers_all_attempts():
    scene = Scene(a=[hang()], b=[hang()], c=[hang()], order={"attempt_timeout": {"seconds": 4}})

    async def main():
        error = await scene.attempt(10.0)
        assert isinstance(error, DeadlineExceeded)
        assert 10 <= scene.clock.now() < 10.25

    scene.run(main)


@pytest.mark.parametrize("then", ["cut", "stall", "junk", "close"])
def test_stream_failure_before_first_token_fails_over(then):
    scene = Scene(a=[stream(then=then)], b=[stream("he", "llo")], **FIRST)

    async def main():
        got, error = await read(await scene.ask(stream=True))
        assert (texts(got), error) == (({"id-1"}, "hello", True), None)
        assert got[-1] == DONE

    scene.run(main)


@pytest.mark.parametrize("then", ["cut", "stall", "junk", "close"])
def test_unresumable_stream_ends_in_one_error(then):
    scene = Scene(a=[stream("he", then=then)], b=[stream("hello")], **FIRST)

    async def main():
        answer = await scene.ask(stream=True)
        got, error = await read(answer)
        assert texts(got)[1:] == ("he", False)
        assert error.stage == "committed"
        assert scene.counts() == {"a": 1, "b": 0}
        assert scene.pool.status()["replicas"][0]["good"] == 1

    scene.run(main)


def test_less_important_requests_are_shed_first():
    order = {
        "load_shedding": {"max_queue": 1, "concurrency": {"algorithm": "fixed", "initial_limit": 1}},
        "hedge": "off",
    }
    scene = Scene(a=[ok(seconds=1)], order=order)

    async def main():
        first = asyncio.create_task(scene.attempt())
        await scene.clock.sleep(0.1)
        low = asyncio.create_task(scene.attempt(priority=RequestPriority.SHEDDABLE))
        await scene.clock.sleep(0.1)
        high = asyncio.create_task(scene.attempt(priority=RequestPriority.CRITICAL_PLUS))
        await asyncio.wait({first, low, high})
        assert isinstance(low.result(), Overloaded)
        assert high.result().replica == "a"

    scene.run(main)


def test_disabled_parts_are_absent():
    scene = Scene(a=[refuse(500)], b=[ok()], order=[], outlier="off", load_balancing="priority")

    async def main():
        for _ in range(50):
            assert isinstance(await scene.attempt(), BackendError)
        assert scene.counts() == {"a": 50, "b": 0}
        assert scene.pool.status()["replicas"][0]["circuit_breaker"] is None

    scene.run(main)


def test_status_contains_the_fields_of_the_page():
    scene = Scene(a=[ok(), refuse(500)], b=[ok()], load_balancing="priority", order={"hedge": "off"})

    async def main():
        await scene.ask()
        await scene.ask()
        status = scene.pool.status()
        a = status["replicas"][0]
        assert (a["good"], a["failed"]) == (1, {"refused 500": 1})
        assert a["latency_s"]["p50"] == pytest.approx(0.1)
        assert status["load_shedding"]["running"] == 0
        assert 9 < status["retry"]["tokens"] <= 10
        assert (status["usable"], status["inflight"], status["panic"]) == (2, 0, [])

    scene.run(main)


def test_described_order_matches_built_order():
    scene = Scene(a=[ok()], order={"hedge": "off", "retry": {"max_attempts": 2}})
    lines = scene.pool.explain()
    names = [line.split()[1] for line in lines if line[0].isdigit()]
    layers = [*scene.pool._pool_pipeline.bound_strategies][::-1]
    assert names == [
        "timeout",
        "load_shedding",
        "retry",
        "choice",
        "adaptive_throttling",
        "circuit_breaker",
        "attempt_timeout",
        "stream_timeout",
    ]
    assert layers == [
        "load_shedding",
        "retry",
    ]  # the total time is a deadline that each wait respects
    assert "max_attempts=2" in lines[2]


def test_invalid_config_names_replica():
    scene = Scene(a=[ok()])
    options = scene.options("a")
    wanting = replace_replica(options, api_key_env="AGENTGUARD_TEST_NO_SUCH_KEY")
    from agentguard.backends.pool import Pool

    with pytest.raises(ConfigError, match=r"replica a.*AGENTGUARD_TEST_NO_SUCH_KEY"):
        Pool(wanting)


def replace_replica(options, **changes):
    one = options.replicas[0].model_copy(update=changes)
    return options.model_copy(update={"replicas": (one,)})


def test_request_is_forwarded_unchanged():
    scene = Scene(a=[ok()])

    async def main():
        await scene.ask(headers=((b"x-custom", b"1"),), body=b'{"model": "m",  "odd": 1e2}')
        sent = scene.ones["a"].asked[0]
        assert (sent.headers, sent.body) == (((b"x-custom", b"1"),), b'{"model": "m",  "odd": 1e2}')
        assert replace(sent, tried_replicas=[]).quorum_size == 1

    scene.run(main)
