from __future__ import annotations

import pytest

from agentguard.errors import ConfigError
from agentguard.trajectory.model import Usage
from tests.unit.detect.builders import env, found, run, said, user


def spent(tokens: int, cost: float, at: float) -> dict[str, object]:
    usage = Usage(prompt_tokens=tokens, completion_tokens=1, cost_usd=cost)
    return said("I work.", usage=usage, started_at=at, ended_at=at + 10)


RUN = run(user("go"), *[spent(100, 0.5, 60.0 * i) for i in range(4)], env("x"))


@pytest.mark.parametrize(
    ("name", "limit", "step"),
    [("steps", 2, 3), ("tokens", 250, 3), ("cost_usd", 0.9, 2), ("seconds", 100, 3)],
)
def test_exceeded_budget_is_reported_once(name: str, limit: float, step: int) -> None:
    (finding,) = found(RUN, "budget", **{name: limit})
    assert (finding.step, finding.data["budget"]) == (step, name)


@pytest.mark.parametrize("options", [{}, {"steps": 4}, {"tokens": 404, "seconds": 190}, {"cost_usd": 2.0}])
def test_budget_within_limit_is_not_reported(options: dict[str, float]) -> None:
    assert found(RUN, "budget", **options) == ()


def test_slow_step_is_reported() -> None:
    (finding,) = found(RUN, "watchdog", seconds=5)[:1]
    assert finding.data["taken_s"] == 10.0
    assert found(RUN, "watchdog") == ()
    assert found(run(said("x", ended_at=1e9)), "watchdog") == ()


@pytest.mark.parametrize(
    ("detector", "options", "option"),
    [
        ("budget", {"steps": 0}, "steps"),
        ("budget", {"tokens": 1.5}, "tokens"),
        ("watchdog", {"seconds": float("inf")}, "seconds"),
        ("watchdog", {"seconds": None}, "seconds"),
        ("watchdog", {"minutes": 3}, "minutes"),
        ("exact_loop", {"repeat": True}, "repeat"),
        ("near_loop", {"similarity": 1.5}, "similarity"),
        ("unknown_origin", {"dates": "no"}, "dates"),
        ("unknown_origin", {"ignore": "id"}, "ignore"),
        ("control_flow", {"requires": ["a"]}, "requires"),
        ("control_flow", {"requires": {1: "a"}}, "requires"),
        ("control_flow", {"order": [1]}, "order"),
        ("capability", {"denied": {"a": 3}}, "denied"),
    ],
)
def test_invalid_option_names_detector_and_option(
    detector: str, options: dict[str, object], option: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{detector}.*{option}"):
        found(RUN, detector, **options)
