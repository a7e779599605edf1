import pytest

from agentguard.backends.backend_factory import build_http_backend_factory
from agentguard.backends.config import BackendsOptions, ReplicaOptions
from agentguard.errors import ConfigError
from agentguard.resilience import OutlierDetectionOptions

ONE = {"replicas": [{"name": "a", "url": "http://127.0.0.1:8000/v1"}]}


def names(options):
    return [strategy.name for strategy in options.pipeline]


def parse(**section):
    return BackendsOptions.parse({**ONE, **section})


def test_minimal_config_gets_defaults():
    options = parse()
    assert names(options) == [
        "timeout", "load_shedding", "retry", "hedge", "adaptive_throttling", "circuit_breaker", "attempt_timeout", "stream_timeout",  # noqa: E501
    ]  # fmt: skip
    assert (options.load_balancing.name, options.outlier, options.probe) == (
        "least_request",
        OutlierDetectionOptions(),
        None,
    )
    assert options.health.path == "/models"


def test_mapping_changes_default_order_and_list_replaces_it():
    changed = parse(
        pipeline={"hedge": False, "adaptive_throttling": "off", "retry": {"backoff": {"initial_delay_s": 1}}}
    )
    assert names(changed) == [
        "timeout",
        "load_shedding",
        "retry",
        "circuit_breaker",
        "attempt_timeout",
        "stream_timeout",
    ]
    retry = changed.pipeline[2]
    assert (retry.backoff.initial_delay_s, retry.backoff.max_delay_s, retry.max_attempts) == (1.0, 10.0, 3)
    listed = parse(
        pipeline=["retry", {"circuit_breaker": {"minimum_throughput": 5}}, {"stream_timeout": None}]
    )
    assert names(listed) == ["retry", "circuit_breaker", "stream_timeout"]
    assert listed.pipeline[1].minimum_throughput == 5
    assert names(parse(pipeline=[])) == []


def test_nested_options_keep_other_defaults():
    hedge = parse(pipeline={"hedge": {"budget": {"ratio": 0.1}}}).pipeline[3]
    assert (hedge.budget.ratio, hedge.budget.reserve) == (0.1, 0.0)
    assert parse(pipeline={"attempt_timeout": None}).pipeline[6].seconds == 300.0
    assert parse(pipeline={"retry": {"statuses": [500]}}).pipeline[2].statuses == frozenset({500})


def test_models_can_be_a_list_or_a_mapping():
    assert ReplicaOptions(name="a", url="http://x", models=["m"]).models == {"m": "m"}
    assert ReplicaOptions(name="a", url="http://x", models={"m": "n"}).models == {"m": "n"}


def test_policy_is_a_name_or_has_options():
    assert (
        parse(load_balancing={"name": "prefix_affinity", "max_load_factor": 2}).load_balancing.max_load_factor
        == 2.0
    )
    assert parse(load_balancing="session_affinity").load_balancing.max_load_factor == 0.0


def test_parts_can_be_disabled():
    options = parse(health=False, outlier="off", quorum=False, probe=False)
    assert (options.health, options.outlier, options.quorum, options.probe) == (None, None, None, None)


def test_equal_sections_are_equal():
    section = {
        "pipeline": {"hedge": "off"},
        "load_balancing": "prefix_affinity",
        "http": {"max_connections": 5},
    }
    assert parse(**section) == parse(**section)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"replicas": []}, "between 1 and 1000"),
        ({"replicas": [*ONE["replicas"], *ONE["replicas"]]}, "the name a occurs twice"),
        ({"replicas": [{"name": "a b", "url": "http://x"}]}, "replicas.0.name"),
        ({"replicas": [{"name": "a", "url": "ftp://x"}]}, "replicas.0.url"),
        ({"replicas": [{"name": "a", "url": "http://me:pw@x"}]}, "replicas.0.url"),
        ({"replicas": [{"name": "a", "url": "http://x", "weight": 0}]}, "replicas.0.weight"),
        ({"replicas": [{"name": "a", "url": "http://x", "key": "s"}]}, "replicas.0.key"),
        ({"replicas": [{"name": "a", "url": "http://x", "headers": {"X-Api-Key": "s"}}]}, "api_key_env"),
        (
            {"load_balancing": "fastest"},
            "there are: least_request, prefix_affinity, priority, round_robin, session_affinity, weighted",
        ),
        (
            {"load_balancing": {"name": "prefix_affinity", "bond": 1}},
            "no option bond; there are: max_load_factor",
        ),
        (
            {"load_balancing": {"name": "prefix_affinity", "max_load_factor": 0.5}},
            "max_load_factor must be 0",
        ),
        ({"load_balancing": 3}, "a name, or a mapping"),
        ({"pipeline": {"retry": {"max_attempts": 0}}}, "pipeline.retry: RetryOptions.max_attempts"),
        ({"pipeline": {"retry": {"max_attempts": "3"}}}, "pipeline.retry.max_attempts must be of type int"),
        ({"pipeline": {"retry": {"backoff": 3}}}, "pipeline.retry.backoff must be a mapping"),
        ({"pipeline": {"retry": {"statuses": ["x"]}}}, "list of whole numbers"),
        ({"pipeline": {"retry": {"budget": {"ratio": float("nan")}}}}, "ratio"),
        ({"pipeline": {"circuit_breaker": {"target": "x"}}}, "no option target"),
        ({"pipeline": {"stream_timeout": {"carries": "x"}}}, "no option carries"),
        ({"pipeline": {"retries": {}}}, "there are: timeout, load_shedding, retry"),
        ({"pipeline": ["circuit_breaker", "retry"]}, "retry must precede circuit_breaker"),
        ({"pipeline": ["retry", "retry"]}, "twice"),
        ({"pipeline": ["stream_timeout", "circuit_breaker"]}, "must be the last"),
        ({"pipeline": [{"retry": {}, "hedge": {}}]}, "pipeline[0] must be a name"),
        ({"pipeline": "standard"}, "pipeline must be a list"),
        ({"outlier": {"panic_threshold": 101}}, "panic"),
        ({"health": {"interval": 1}}, "health.interval"),
        ({"probe": True}, "probe.prompt"),
        ({"quorum": {"max_replicas": 100}}, "quorum.max_replicas"),
        ({"http": {"max_connections": 0}}, "connections"),
        ({"polcy": "x"}, "polcy"),
    ],
)
def test_error_names_the_invalid_field(section, says):
    with pytest.raises(ConfigError) as caught:
        parse(**section)
    assert says in str(caught.value)
    assert str(caught.value).startswith("backends: ")
    assert "pw" not in str(caught.value)


def test_section_must_be_a_mapping():
    for given in (None, [], "x", 3):
        with pytest.raises(ConfigError):
            BackendsOptions.parse(given)


def test_missing_key_error_names_the_replica_once(monkeypatch):
    monkeypatch.delenv("PROVIDER_KEY", raising=False)
    options = ReplicaOptions(name="a", url="http://127.0.0.1:8000/v1", api_key_env="PROVIDER_KEY")
    with pytest.raises(ConfigError) as caught:
        build_http_backend_factory()(options)
    assert (
        str(caught.value)
        == "backends: replica a: the environment variable PROVIDER_KEY with the key is not set"
    )
