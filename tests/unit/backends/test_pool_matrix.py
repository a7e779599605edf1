"""Every fault, streamed or not, before and after the first token, with and without effects, in virtual time.

Invariants:

- an answer or one typed error by the deadline;
- attempts within the budget;
- no incomplete answer is reported as complete;
- no leaks (`Scene.run` checks this).
"""

import asyncio
import itertools
import random
from collections import Counter

import pytest

from agentguard.backends.base import Response
from agentguard.errors import ResilienceError
from tests.unit.backends.pool_fixtures import Scene, body, fail, hang, ok, read, refuse, stream, texts

WHOLE = "one two three"
WORDS = ("one", " two", " three")
DEADLINE_S, GRACE_S = 40.0, 0.25

PLAIN = [
    fail("unsent"),
    fail(),
    hang(),
    refuse(500),
    refuse(503, 1.0),
    refuse(429, 0.2),
    refuse(429, -1.0),
    refuse(400),
    body(b"<html>"),
    body(b"{}"),
    ok(seconds=30),
]
BEFORE = [stream(then=then) for then in ("cut", "stall", "junk", "close")]
AFTER = [stream("one", " two", then=then) for then in ("cut", "stall", "junk", "close")]
ORDER = {
    "attempt_timeout": {"seconds": 5},
    "stream_timeout": {"first_chunk_timeout_s": 3, "idle_timeout_s": 2},
    "circuit_breaker": {"minimum_throughput": 5},
}


def chance(good, faults, rng, share):
    async def act(one, request):
        chosen = rng.choice(faults) if rng.random() < share else good(request)
        return await chosen(one, request)

    return act


def good(request):
    """Return the acts of a good replica: the answer, or the rest of a resumed stream."""
    if not request.stream:
        return ok(WHOLE)
    if b"continue_final_message" in request.body:
        said = b"one two" if b"one two" in request.body else b"one"
        return stream(*WORDS[len(said.split()) :], id="other")
    return stream(*WORDS)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("idempotent", [False, True])
def test_every_fault_meets_the_invariants(seed, share, streamed, idempotent):
    rng = random.Random(seed)
    faults = [*PLAIN, *(BEFORE + AFTER if streamed else [])]
    scripts = {name: [chance(good, faults, rng, share)] for name in "abc"}
    per = {name: {"resumable": True} for name in "ab"}
    scene = Scene(per=per, order=ORDER, load_balancing="round_robin", seed=seed, **scripts)
    late, wrong, numbers = [], [], itertools.count()

    async def one():
        began = scene.clock.now()
        try:
            marks = ((b"mark", b"%d" % next(numbers)),)
            answer = await scene.ask(DEADLINE_S, stream=streamed, idempotent=idempotent, headers=marks)
            if isinstance(answer, Response):
                wrong.extend([answer] if WHOLE.encode() not in answer.body else [])
            else:
                got, error = await read(answer)
                _, text, ended = texts(got)
                if error is None and not (ended and text == WHOLE):
                    wrong.append((text, ended))
                if error is not None and (ended or not isinstance(error, ResilienceError)):
                    wrong.append(error)
        except ResilienceError:
            pass
        if scene.clock.now() - began > DEADLINE_S + GRACE_S:
            late.append(scene.clock.now() - began)

    async def main():
        for _ in range(60):
            await asyncio.gather(one(), one())
        await scene.clock.sleep(1)

    scene.run(main)
    assert (late, wrong) == ([], [])
    attempts = Counter(dict(one.headers)[b"mark"] for end in scene.ones.values() for one in end.asked)
    # Three attempts and a hedge, and the same again for each of the two stream resumptions.
    assert max(attempts.values()) <= (12 if streamed else 4)
    assert scene.kinds()["hedge"] <= 0.05 * 120 + 10


def test_total_outage_recovers_within_ten_seconds():
    """Metastable failure: the pool's own retries and ejections must not prolong the outage."""
    down = [False]

    async def act(one, request):
        return await (refuse(500, seconds=0.05) if down[0] else ok("x", 0.05))(one, request)

    scene = Scene(a=[act], b=[act], c=[act], load_balancing="round_robin")
    ends = []

    async def one():
        found = await scene.attempt(5.0)
        ends.append((scene.clock.now(), isinstance(found, Response)))

    async def main():
        tasks = []
        for _ in range(400):  # 10 per second for 40 s
            down[0] = 10 <= scene.clock.now() < 15
            tasks.append(asyncio.create_task(one()))
            await scene.clock.sleep(0.1)
        await asyncio.gather(*tasks)

    scene.run(main)
    after = [good for at, good in ends if at >= 25]
    assert sum(after) >= 0.95 * len(after) > 100


@pytest.mark.parametrize("votes", [1, 3])
@pytest.mark.parametrize("streamed", [False, True])
def test_cancellation_at_any_time_leaks_nothing(streamed, votes):
    """Cancel in every millisecond of a call with a failure, a retry, a hedge and a stream resumption."""
    for step in range(0, 900, 15):
        first = stream("one", " two", then="cut") if streamed else fail(seconds=0.2)
        rest = stream(" three", id="x") if streamed else ok(WHOLE)
        per = {name: {"resumable": True} for name in "abc"}
        scene = Scene(
            a=[first, rest],
            b=[rest],
            c=[hang()],
            per=per,
            load_balancing="priority",
            order={"hedge": {"min_samples": 1}},
        )

        async def course(scene=scene):
            answer = await scene.ask(stream=streamed, quorum_size=votes)
            if not isinstance(answer, Response):
                await read(answer)

        async def main(scene=scene, step=step, course=course):
            task = asyncio.create_task(course())
            await scene.clock.sleep(step / 1000)
            task.cancel()
            await asyncio.wait({task})
            await scene.clock.sleep(0.2)
            status = scene.pool.status()
            assert (status["inflight"], status["quorum"], status["load_shedding"]["running"]) == (0, 0, 0)

        scene.run(main)
