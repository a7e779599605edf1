from collections.abc import Sequence

import pytest

from agentguard.config.policy import Policy
from agentguard.detect.base import Finding
from agentguard.errors import ConfigError, UnknownPlugin
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory
from agentguard.verdict import Verdict

RUN = Trajectory(
    id="run",
    format="test",
    task="Count to three.",
    steps=(
        Step(index=0, source=Source.USER, agent="user", content="Count to three."),
        Step(index=1, source=Source.AGENT, agent="counter", content="One, two, three."),
    ),
)


class Stub:
    """A localizer that returns its arguments."""

    name = "stub"

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        return Diagnosis(
            trajectory_id=trajectory.id, method=self.name, verdict=Verdict.NO_FAILURE_FOUND, probability=0.1
        )


class Raising:
    name = "raising"

    def locate(self, trajectory, findings):
        raise RuntimeError("secret of the run")


def test_guard_combines_detectors_and_localizer():
    diagnosis = Guard(localizer=Stub()).diagnose(RUN)
    assert diagnosis.method == "stub"
    assert set(diagnosis.timing) == {"detect_s", "localize_s", "total_s"}
    assert diagnosis.timing["total_s"] >= diagnosis.timing["localize_s"]


def test_raising_localizer_is_reported_and_findings_are_kept():
    call = ToolCall(id="c", name="open", arguments={"object": "door"})
    seen = Observation(content="The door is locked.", call_id="c", tool="open")
    steps = tuple(
        Step(index=i, source=Source.AGENT, agent="a", tool_calls=(call,), observations=(seen,))
        for i in range(8)
    )
    run = Trajectory(id="loop", format="test", task="Open the door.", steps=steps)
    diagnosis = Guard(localizer=Raising()).diagnose(run)
    assert diagnosis.verdict is Verdict.UNDECIDED
    assert [f.error for f in diagnosis.failures] == ["RuntimeError"]
    assert any(f.detector == "exact_loop" for f in diagnosis.findings)
    assert "secret" not in str(diagnosis.failures)


def test_policy_selects_detectors():
    policy = Policy.parse({"detectors": {"exact_loop": False}})
    guard = Guard.from_policy(policy, localizer=Stub())
    assert guard.detectors is not None
    assert "exact_loop" not in guard.detectors
    assert "near_loop" in guard.detectors
    only = Guard.from_policy(Policy.parse({"enabled_detectors": ["near_loop"]}), localizer=Stub())
    assert set(only.detectors or ()) == {"near_loop"}


def test_unknown_detector_and_option_are_errors_at_construction():
    with pytest.raises(UnknownPlugin, match="no detector named 'loup'"):
        Guard.from_policy(Policy.parse({"detectors": {"loup": {}}}), localizer=Stub())
    with pytest.raises(ConfigError, match="exact_loop"):
        Guard(detectors={"exact_loop": {"no_such_option": 1}}, localizer=Stub())


def test_untrained_method_is_rejected():
    with pytest.raises(ConfigError, match="needs training"):
        Guard(localizer="label_copy")


def test_run_known_to_have_failed_is_only_ranked():
    guard = Guard(localizer="embedded", options={"given_failed": True})
    diagnosis = guard.diagnose(RUN)
    assert diagnosis.verdict is Verdict.FAILED
    assert diagnosis.probability == 1.0
    assert diagnosis.hypotheses
    assert "the failure is given, not detected" in diagnosis.notes
    with pytest.raises(ConfigError, match="given_failed"):
        Guard(localizer="two_line", options={"given_failed": True})


def test_policy_protects_turns_and_repairs_calls() -> None:
    policy = Policy.parse(
        {
            "detectors": {"unknown_tool": {"on_fail": ["roll_forward", {"vote": {"n": 5}}]}},
            "recover": {"redundancy": {"models": ["large", "other"], "on_fail": "escalate"}},
            "budgets": {"resamples": 8},
        }
    )
    guard = Guard.from_policy(policy, localizer="first_finding", repair=lambda run, held: None)
    rules = guard.components.session_config
    assert rules is not None
    assert [one.name for one in rules.planner.get_escalation("protection")] == ["n_version", "escalate"]
    assert [one.name for one in rules.planner.get_escalation("unknown_tool")] == ["roll_forward", "vote"]
    assert (rules.recovery_budget.resamples, rules.planner.models) == (8, {"large", "other"})
    with guard.override(repair=None):
        assert guard.components.session_config is not None
        assert guard.components.session_config.repair_function is None
    assert rules.repair_function is not None
