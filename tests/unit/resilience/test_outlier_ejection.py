import pytest

from agentguard.errors import BackendError, ConfigError
from agentguard.resilience import (
    BasicRequest,
    Deadline,
    HostBalancer,
    OutlierDetection,
    OutlierDetectionOptions,
    Runtime,
)
from agentguard.resilience.events import Observers
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import Backend, answer, fails, hang


def outliers(hosts="abc", **options):
    clock, events = VirtualClock(), []
    runtime = Runtime(clock=clock, observers=Observers([events.append]))
    return OutlierDetection(hosts, OutlierDetectionOptions(**options), runtime), clock, events


def test_five_consecutive_failures_eject_for_growing_intervals():
    hosts, clock, events = outliers()
    for _ in range(4):
        hosts.record("a", is_success=False)
    hosts.record("a", is_success=True)
    for _ in range(4):
        hosts.record("a", is_success=False)
    assert hosts.list_usable_hosts() == ["a", "b", "c"]
    hosts.record("a", is_success=False)
    assert hosts.list_usable_hosts() == ["b", "c"]
    clock.advance(29.9)
    assert hosts.list_usable_hosts() == ["b", "c"]
    clock.advance(0.2)
    assert hosts.list_usable_hosts() == ["a", "b", "c"]
    for _ in range(5):
        hosts.record("a", is_success=False)
    clock.advance(59)
    assert hosts.list_usable_hosts() == ["b", "c"]
    clock.advance(1.1)
    assert hosts.list_usable_hosts() == ["a", "b", "c"]
    assert [(e.kind, e.target, e.seconds) for e in events] == [
        ("eject", "a", 30),
        ("readmit", "a", 0),
        ("eject", "a", 60),
        ("readmit", "a", 0),
    ]


def test_calm_interval_forgives_one_ejection_and_ejection_is_bounded():
    hosts, clock, _ = outliers()
    for _ in range(20):
        for _ in range(5):
            hosts.record("a", is_success=False)
        clock.advance(300.001)
    assert hosts.snapshot()["a"].ejected_until - clock.now() == pytest.approx(-270.001, abs=0.01)
    hosts, clock, events = outliers()
    for _ in range(12):
        for _ in range(5):
            hosts.record("a", is_success=False)
        clock.advance(hosts.snapshot()["a"].ejected_until - clock.now())
    assert [e.seconds for e in events if e.kind == "eject"][-2:] == [300, 300]
    clock.advance(1000)
    for _ in range(5):
        hosts.record("a", is_success=False)
    assert events[-1].seconds == 30


def test_max_ejection_percent_allows_one_of_three_hosts():
    hosts, _, events = outliers()
    for host in "ab":
        for _ in range(9):
            hosts.record(host, is_success=False)
    assert hosts.list_usable_hosts() == ["b", "c"]
    assert len(events) == 1


def test_host_beyond_max_ejection_is_ejected_later():
    hosts, clock, events = outliers()
    for host in "ab":
        for _ in range(6):
            hosts.record(host, is_success=False)
    clock.advance(31)
    hosts.record("b", is_success=False)
    assert [e.target for e in events if e.kind == "eject"] == ["a", "b"]


def test_at_most_three_of_thirty_hosts_are_ejected():
    names = [f"h{n}" for n in range(30)]
    hosts, _, _ = outliers(names)
    for name in names:
        for _ in range(5):
            hosts.record(name, is_success=False)
    assert len(hosts.list_usable_hosts()) == 27


def test_only_host_is_still_used():
    hosts, _, events = outliers("a")
    for _ in range(5):
        hosts.record("a", is_success=False)
    assert hosts.list_usable_hosts() == ["a"]
    assert [e.kind for e in events] == ["eject", "panic"]


@pytest.mark.parametrize(("bad", "panics"), [(1, False), (2, False), (3, True), (4, True)])
def test_panic_begins_below_half(bad, panics):
    hosts, _, _ = outliers("abcd", max_ejection_percent=100.0)
    for host in "abcd"[:bad]:
        for _ in range(5):
            hosts.record(host, is_success=False)
    assert hosts.is_panicking is panics
    assert hosts.list_usable_hosts() == (list("abcd") if panics else list("abcd")[bad:])


def test_low_success_rate_ejects_at_end_of_interval():
    hosts, clock, events = outliers("abcdefgh", consecutive_failures=1000)
    for n in range(100):
        for host in "abcdefg":
            hosts.record(host, is_success=n % 20 != 0)
        hosts.record("h", is_success=n % 2 == 0)
    assert not events
    clock.advance(10.1)
    assert hosts.list_usable_hosts() == list("abcdefg")
    assert "success rate 50%" in events[0].reason


def test_success_rates_are_not_compared_with_few_calls_or_hosts():
    for names, calls in [("abcd", 200), ("abcdef", 99)]:
        hosts, clock, events = outliers(names, consecutive_failures=1000)
        for _ in range(calls):
            for host in names:
                hosts.record(host, is_success=host != "a")
        clock.advance(11)
        assert hosts.list_usable_hosts() == list(names)
        assert not events


def test_hosts_can_be_added_and_removed():
    hosts, _, _ = outliers("ab")
    hosts.add("c")
    for _ in range(5):
        hosts.record("b", is_success=False)
    hosts.remove("b")
    hosts.record("b", is_success=False)
    assert hosts.list_usable_hosts() == ["a", "c"]
    hosts.add("b")
    assert hosts.list_usable_hosts() == ["a", "c", "b"]


def spread(clock, **scripts):
    backends = {name: Backend(clock, *script) for name, script in scripts.items()}
    layer = HostBalancer(
        {n: b.send for n, b in backends.items()}, OutlierDetectionOptions(), Runtime(clock=clock)
    )
    return backends, layer


async def sent(layer, n, seconds, clock):
    good = 0
    for k in range(n):
        try:
            async with Deadline.after(1.0, clock=clock).limit():
                await layer.send(BasicRequest(payload=k), Deadline.after(1.0, clock=clock))
            good += 1
        except Exception as error:
            assert getattr(error, "code", "") in ("backend_error", "deadline_exceeded")
        await clock.sleep(seconds)
    return good


@pytest.mark.parametrize("fault", [fails(500), fails(stage="unsent"), hang()])
def test_one_bad_replica_of_three_is_ejected_after_five(fault):
    clock = VirtualClock()
    backends, layer = spread(clock, a=[answer()], b=[fault], c=[answer()])
    assert clock.run(sent(layer, 40, 0.0, clock)) == 35
    assert len(backends["b"].calls) == 5


def test_recovered_host_is_used_again():
    clock = VirtualClock()
    backends, layer = spread(clock, a=[answer()], b=[*[fails(500)] * 5, answer()], c=[answer()])
    clock.run(sent(layer, 100, 1.0, clock))
    assert len(backends["b"].calls) > 20


def test_caller_errors_do_not_eject():
    clock = VirtualClock()
    backends, layer = spread(clock, a=[fails(404)], b=[fails(404)])
    assert clock.run(sent(layer, 20, 0.0, clock)) == 0
    assert [len(b.calls) for b in backends.values()] == [10, 10]


def test_all_bad_hosts_still_get_every_call():
    clock = VirtualClock()
    backends, layer = spread(clock, a=[fails(500)], b=[fails(500)], c=[fails(500)])
    assert clock.run(sent(layer, 60, 0.0, clock)) == 0
    assert sum(len(b.calls) for b in backends.values()) == 60


def test_balancer_without_hosts_is_rejected():
    with pytest.raises(ConfigError, match=r"HostBalancer\.hosts"):
        HostBalancer({}, OutlierDetectionOptions(), Runtime())
    assert BackendError("x").stage == "sent"
