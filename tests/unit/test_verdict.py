"""Names of verdicts, and the names that earlier versions wrote."""

import pytest

from agentguard.bundles.bundle import Bundle, decode_members, encode_json, encode_members
from agentguard.evals.prediction import Prediction
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict, describe_verdict, upgrade_verdict

EARLIER = {"failure": Verdict.FAILED, "no_failure": Verdict.NO_FAILURE_FOUND, "abstained": Verdict.UNDECIDED}


@pytest.mark.parametrize(("name", "verdict"), EARLIER.items())
def test_earlier_name_is_read_as_the_current_verdict(name, verdict):
    assert Verdict(name) is verdict
    assert upgrade_verdict(name) == verdict.value
    prediction = Prediction(run="r").as_dict() | {"verdict": name}
    assert Prediction.from_dict(prediction).verdict == verdict


@pytest.mark.parametrize("name", [*Verdict, "error", ""])
def test_other_name_is_unchanged(name):
    assert upgrade_verdict(name) == name


def test_unknown_verdict_is_rejected():
    with pytest.raises(ValueError, match="passed"):
        Verdict("passed")


def test_score_between_the_thresholds_is_undecided():
    found = [Verdict.from_score(score, low=0.2, high=0.8) for score in (0.2, 0.5, 0.8, 0.81)]
    assert [str(one) for one in found] == ["no_failure_found", "undecided", "undecided", "failed"]


def test_labels_are_the_names_in_words():
    assert [one.label for one in Verdict] == ["failed", "no failure found", "undecided"]
    assert describe_verdict("") == "not diagnosed"


def test_bundle_with_earlier_names_is_read():
    earlier = {"verdict": "abstained"}
    run = Trajectory(id="r", format="f", task="t", steps=())
    members = encode_members(Bundle(trajectory=run, diagnosis=earlier, expectations=earlier))
    bundle = decode_members({name: encode_json(value) for name, value in members.items()}, "file.agb")
    assert bundle.diagnosis["verdict"] == bundle.expectations["verdict"] == "undecided"
