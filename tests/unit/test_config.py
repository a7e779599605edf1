import pytest
from hypothesis import given, strategies as st

from agentguard.config.policy import Policy
from agentguard.errors import ConfigError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_empty_policy_is_the_default(tmp_path):
    file = tmp_path / "guard.yaml"
    file.write_text("")
    assert Policy.load(file) == Policy()


def test_detectors_and_localizer_options_are_parsed(tmp_path):
    file = tmp_path / "guard.yaml"
    file.write_text(
        "version: 1\ndetectors:\n  exact_loop: {repeat: 4}\n  goal_drift: false\n"
        "localizer: {name: embedded, risk: 0.3}\n"
    )
    policy = Policy.load(file)
    assert policy.detectors == {"exact_loop": {"repeat": 4}, "goal_drift": False}
    assert policy.localizer.to_options() == {"risk": 0.3}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("version: 2", "version"),
        ("detector: {}", "detector: unknown setting (did you mean 'detectors'? known: version, detectors"),
        ("detectors: {a: 3}", "detectors.a: write a mapping of options, or false to disable the detector"),
        ("detector_deadline_s: 0", "detector_deadline_s"),
        ("[1, 2", "is not valid YAML (line"),
        ("- 1", "the document"),
        (
            "recover: {treshold: 1}",
            "recover.treshold: unknown setting (did you mean 'threshold'? known",
        ),
    ],
)
def test_invalid_policy_error_names_file_and_field(tmp_path, text, part):
    file = tmp_path / "guard.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Policy.load(file)
    assert str(file) in str(caught.value)
    assert part in str(caught.value)


def test_missing_and_huge_files_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Policy.load(tmp_path / "none.yaml")
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="larger than"):
        Policy.load(big)


@given(JSON)
def test_any_parsed_value_is_a_policy_or_a_config_error(document):
    try:
        Policy.parse(document)
    except ConfigError as error:
        assert "policy" in str(error)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_policy_or_a_config_error(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("p") / "guard.yaml"
    file.write_bytes(data)
    try:
        Policy.load(file)
    except ConfigError as error:
        assert str(file) in str(error)


def test_redundancy_is_parsed_and_invalid_fields_are_named(tmp_path):
    file = tmp_path / "guard.yaml"
    file.write_text(
        "recover: {redundancy: {effects: [write], candidates: 5, quorum: 3, models: [], uncertainty_threshold: 0.3, on_fail: [stop]}}\n"  # noqa: E501
        "budgets: {resamples: 4, repairs: 0}\n"
    )
    policy = Policy.load(file)
    assert policy.recover.redundancy is not None
    assert policy.recover.redundancy.effects == ("write",)
    assert (policy.budgets.resamples, policy.budgets.repairs) == (4, 0)
    for text, part in (
        ("recover: {redundancy: {effects: [wild]}}", "recover.redundancy.effects"),
        ("recover: {redundancy: {candidates: 1}}", "recover.redundancy.candidates"),
        ("recover: {redundancy: {uncertainty_threshold: 1.5}}", "recover.redundancy.uncertainty_threshold"),
        ("recover: {redundancy: {votes: 3}}", "recover.redundancy.votes"),
        ("budgets: {resamples: -1}", "budgets.resamples"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=part):
            Policy.load(file)
