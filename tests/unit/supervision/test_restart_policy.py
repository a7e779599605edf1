"""Tests of the restart policy: backoff, reset after a healthy run, and the limit."""

from __future__ import annotations

from agentguard.resilience import Backoff
from agentguard.supervision.restart_policy import RestartPolicy

DOUBLING = Backoff(initial_delay_s=0.5, max_delay_s=3.0, jitter=0.0).compute_max_delay


def test_delay_doubles_up_to_its_maximum():
    policy = RestartPolicy(compute_delay=DOUBLING)
    assert [policy.record_exit(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_healthy_run_resets_delay():
    policy = RestartPolicy(compute_delay=DOUBLING)
    assert [policy.record_exit(uptime) for uptime in (0.0, 0.0, 10.0, 9.9)] == [0.5, 1.0, 0.5, 1.0]


def test_policy_is_exhausted_after_its_restarts():
    policy = RestartPolicy(compute_delay=DOUBLING, max_restarts=1)
    policy.record_exit(0.0)
    assert not policy.is_exhausted
    policy.record_exit(0.0)
    assert policy.is_exhausted
    policy.record_exit(10.0)
    assert not policy.is_exhausted
