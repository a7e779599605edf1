"""A supervisor in virtual time: heartbeats, known-answer probes, restarts with backoff, failure, drain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from agentguard.errors import JudgeError
from agentguard.judge.vllm.known_answer_probe import ProbeResult
from agentguard.judge.vllm.status_server import ServerPhase, ServerStatus
from agentguard.judge.vllm.supervisor import VllmSupervisor, WatchOptions
from agentguard.resilience.retry import Backoff

GOOD = ProbeResult(probabilities=(0.9, 0.1, 0.2), correct_count=3)
OPTIONS = WatchOptions(
    start_timeout_s=60,
    heartbeat_interval_s=5,
    probe_interval_s=20,
    max_restarts=3,
    backoff=Backoff(initial_delay_s=4, max_delay_s=60, jitter=0),
)


@dataclass
class World:
    """A server in virtual time; the test changes its next behaviour at given times."""

    now: float = 0.0
    is_alive: bool = False
    pid: int | None = 7
    boots_s: float = 3.0
    beats: bool = True
    probe: ProbeResult = GOOD
    starts: list[float] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    ends_s: float = 1.0
    exit_status: int | None = None
    log: str = "out of memory"
    progress: float | None = None
    progress_each_read: float = 0.0

    def start(self) -> None:
        self.is_alive = True
        self.starts.append(self.now)

    def stop(self, timeout_s: float) -> bool:
        self.events.append("stopped")
        self.is_alive = False
        return self.ends_s <= timeout_s

    def kill(self) -> None:
        self.events.append("killed")
        self.is_alive = False

    def read_log_tail(self, max_bytes: int = 3_000) -> str:
        return self.log[-max_bytes:]

    def fail(self, log: str, exit_status: int = 1) -> None:
        self.log, self.exit_status, self.is_alive = log, exit_status, False

    def heartbeat(self) -> bool:
        return self.is_alive and self.beats and self.now - self.starts[-1] >= self.boots_s

    def ask(self) -> ProbeResult:
        return self.probe

    def read_progress(self) -> float | None:
        if self.progress is not None:
            self.progress += self.progress_each_read
        return self.progress


def watch(
    world: World, happens: dict[float, Callable[[], None]], *, until: float = 200
) -> tuple[ServerStatus, list[ServerStatus]]:
    """Watch the server; run the given events at their times."""
    seen: list[ServerStatus] = []
    supervisor = VllmSupervisor(
        world,
        ServerStatus(),
        heartbeat=world.heartbeat,
        probe=world.ask,
        read_progress=world.read_progress,
        options=OPTIONS,
        now=lambda: world.now,
    )
    supervisor.set_status_callback(seen.append)
    due = sorted(happens.items())

    def wait(seconds: float) -> bool:
        world.now += seconds
        while due and due[0][0] <= world.now:
            due.pop(0)[1]()
        return world.now >= until

    return supervisor.run(wait), seen


def phases(seen: list[ServerStatus]) -> list[str]:
    """Return the sequence of phases without repetitions."""
    names = [str(state.phase) for state in seen]
    return [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]


def test_server_is_ready_after_probe_and_drained_at_the_end() -> None:
    world = World()
    last, seen = watch(world, {})
    assert phases(seen) == ["starting", "ready", "draining", "stopped"]
    assert last.phase is ServerPhase.STOPPED
    assert world.events == ["stopped"]
    ready = next(state for state in seen if state.phase is ServerPhase.READY)
    assert ready.pid == 7
    assert ready.probe["right"] == 3


def test_dead_server_is_restarted() -> None:
    world = World()
    last, seen = watch(world, {50: world.kill})
    assert phases(seen) == ["starting", "ready", "waiting", "starting", "ready", "draining", "stopped"]
    assert len(world.starts) == 2
    assert last.restarts == 1
    assert any(state.reason == "the process ended" for state in seen)


def test_one_missed_heartbeat_does_not_restart() -> None:
    world = World()

    def set_beats(value: bool) -> Callable[[], None]:
        return lambda: setattr(world, "beats", value)

    _, seen = watch(world, {52: set_beats(False), 57: set_beats(True)})
    assert phases(seen) == ["starting", "ready", "suspect", "ready", "draining", "stopped"]
    assert len(world.starts) == 1


def test_hang_visible_only_to_probe_is_restarted() -> None:
    world = World()

    def hang() -> None:
        world.probe = ProbeResult(fault="timeout")

    def mend() -> None:
        world.probe = GOOD

    _, seen = watch(world, {50: hang, 80: mend})
    assert "suspect" in phases(seen)
    assert len(world.starts) == 2
    assert any("probe was not answered: timeout" in state.reason for state in seen)
    assert seen[-1].phase is ServerPhase.STOPPED


def test_corruption_is_detected_against_the_first_answers() -> None:
    world = World()

    def corrupt() -> None:
        world.probe = ProbeResult(probabilities=(0.5, 0.5, 0.5), correct_count=1)

    _, seen = watch(world, {50: corrupt, 90: lambda: setattr(world, "probe", GOOD)}, until=300)
    assert any("answers differ from those after its start" in state.reason for state in seen)
    assert seen[-3].phase is ServerPhase.READY


def test_small_drift_is_tolerated() -> None:
    world = World()
    watch(
        world,
        {50: lambda: setattr(world, "probe", ProbeResult(probabilities=(0.8, 0.15, 0.25), correct_count=3))},
    )
    assert len(world.starts) == 1


def test_crash_loop_fails_with_the_end_of_the_log() -> None:
    world = World(boots_s=10_000)
    last, seen = watch(world, {}, until=10_000)
    assert last.phase is ServerPhase.GIVEN_UP
    assert "out of memory" in last.reason
    assert "no answer within 60 s" in last.reason
    assert len(world.starts) == 1 + OPTIONS.max_restarts
    gaps = [
        later - earlier - OPTIONS.start_timeout_s
        for earlier, later in zip(world.starts, world.starts[1:], strict=False)
    ]
    assert gaps[0] < gaps[1] < gaps[2]
    assert phases(seen)[-1] == "given_up"
    assert not world.is_alive


def test_stable_server_resets_the_restart_count() -> None:
    world = World()
    deaths = {700.0 * n: world.kill for n in range(1, 9)}
    last, _ = watch(world, deaths, until=6000)
    assert last.phase is ServerPhase.STOPPED
    assert last.restarts == 8


def test_missing_program_is_an_error() -> None:
    class Absent(World):
        def start(self) -> None:
            raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(JudgeError, match="No such file"):
        watch(Absent(), {})


def test_server_without_probe_answer_fails_with_the_reason() -> None:
    last, _ = watch(World(probe=ProbeResult(fault="no_model")), {}, until=10_000)
    assert last.phase is ServerPhase.GIVEN_UP
    assert "the known-answer probe was not answered: no_model" in last.reason


def fail_probe(world: World) -> Callable[[], None]:
    return lambda: setattr(world, "probe", ProbeResult(fault="busy"))


def test_busy_server_is_alive_while_its_engine_works() -> None:
    world = World(progress=0.0, progress_each_read=100.0)
    last, seen = watch(world, {50: fail_probe(world)}, until=400)
    assert len(world.starts) == 1
    assert last.phase is ServerPhase.STOPPED
    assert "suspect" not in phases(seen)
    assert any(state.reason == "busy: the known-answer probe was not answered: busy" for state in seen)


def test_server_whose_engine_step_takes_longer_than_the_heartbeats_is_alive() -> None:
    world = World(progress=0.0, progress_each_read=100.0)
    slow = {50.0: lambda: (fail_probe(world)(), setattr(world, "beats", False), pause(world))}
    events = slow | {70.0: lambda: (setattr(world, "beats", True), setattr(world, "progress_each_read", 1.0))}
    _, seen = watch(world, events, until=100)
    assert len(world.starts) == 1
    assert "suspect" not in phases(seen)


def test_server_without_progress_for_the_stall_timeout_is_restarted() -> None:
    world = World(progress=0.0, progress_each_read=100.0)
    _, seen = watch(world, {50: lambda: (setattr(world, "beats", False), pause(world))}, until=100)
    assert len(world.starts) > 1
    (at,) = [state for state in seen if state.phase is ServerPhase.WAITING][:1]
    assert at.reason == "no heartbeat"
    assert 50 + OPTIONS.stall_timeout_s <= world.starts[1] < 50 + OPTIONS.stall_timeout_s + 30


def pause(world: World) -> None:
    world.progress_each_read = 0.0


def test_idle_reason_is_cleared_after_a_busy_phase() -> None:
    world = World(progress=0.0, progress_each_read=100.0)
    events = {50.0: fail_probe(world), 100.0: lambda: setattr(world, "probe", GOOD)}
    _, seen = watch(world, events)
    assert seen[-3].reason == ""


def test_server_without_progress_and_answer_is_drained_and_restarted() -> None:
    world = World(progress=5.0)
    _, seen = watch(world, {50: fail_probe(world), 80: lambda: setattr(world, "probe", GOOD)})
    assert len(world.starts) == 2
    assert world.events[0] == "stopped", "a server that answers completes its requests"
    assert "draining" in phases(seen)


def test_server_without_heartbeat_is_killed_at_once() -> None:
    world = World(progress=5.0)
    watch(world, {50: lambda: setattr(world, "beats", False), 80: lambda: setattr(world, "beats", True)})
    assert world.events[0] == "killed"


def test_wrong_answers_of_a_busy_server_are_no_excuse() -> None:
    world = World(progress=0.0, progress_each_read=100.0)
    wrong = ProbeResult(probabilities=(0.5, 0.5, 0.5), correct_count=1)
    _, seen = watch(world, {50: lambda: setattr(world, "probe", wrong)}, until=120)
    assert len(world.starts) > 1
    assert any("answers differ from those after its start" in state.reason for state in seen)


def test_refused_arguments_fail_at_once_with_the_message_of_vllm() -> None:
    world = World(boots_s=10_000)
    message = "api_server.py: error: unrecognized arguments: --typo"
    last, _ = watch(world, {1: lambda: world.fail(message, 2)}, until=10_000)
    assert last.phase is ServerPhase.GIVEN_UP
    assert "error: unrecognized arguments: --typo" in last.reason
    assert len(world.starts) == 1


def test_same_error_at_two_starts_fails_without_a_third() -> None:
    world = World(boots_s=10_000)
    error = "ValueError: the model is larger than the memory"
    deaths = {float(second): lambda: world.fail(error) for second in range(1, 400)}
    last, _ = watch(world, deaths, until=10_000)
    assert last.phase is ServerPhase.GIVEN_UP
    assert error in last.reason
    assert len(world.starts) == 2
