"""The ``backends`` section of the configuration: replicas, and how requests are brought to them.

::

    backends:
      replicas:
        - {name: a, url: "http://127.0.0.1:8000/v1", models: {gpt-5: qwen3}, continues: true}
        - {name: b, url: "http://127.0.0.1:8001/v1", models: {gpt-5: qwen3}, continues: true, weight: 2}
        - {name: c, url: "https://api.example.com/v1", api_key_env: EXAMPLE_KEY, tier: 1}
      load_balancing: least_request            # or {name: prefix_affinity, max_load_factor: 1.5}
      pipeline: {retry: {attempts: 3}, hedge: off}
      outlier: {in_a_row: 5}
      health: {path: /models, interval_s: 10}
      canary: {ask: "Reply with the one word: seven", expect: seven}
      votes: {most: 3}

Keys are never written here: ``api_key_env`` names the environment variable that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agentguard.backends import pipeline_config
from agentguard.backends._option_parsing import is_disabled, parse_options
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.load_balancing.base import LoadBalancingOptions, get_policy_factory
from agentguard.config.policy import format_validation_error
from agentguard.errors import ConfigError
from agentguard.resilience import OutlierDetection, ResilienceStrategy

T = TypeVar("T")
ApiKind = Literal["chat", "completions", "embeddings", "responses", "messages"]
Seconds = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1000)]

ANY_MODEL = "*"
"""As a model that is asked for: any other; as the name it is served under: the one that was asked for."""

_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class ReplicaOptions(_Section):
    """One endpoint that answers requests.

    Attributes:
        name: what it is called in logs, metrics, headers and the status; unique.
        url: base URL, to which the API's path is joined, e.g. ``http://127.0.0.1:8000/v1``.
        api_key_env: environment variable that has its key.
        auth: the field that the key stands in: ``Authorization: Bearer``, or one of that name.
        headers: sent with every request; none that would be a secret.
        weight: its share of the work beside others.
        priority: replicas of a higher tier are used only while too few of the lower ones can be.
        models: model that is asked for to the name that it serves it under; empty: all models, as asked.
        apis: the APIs that it speaks; null: all.
        resumable: whether a broken answer may be continued from its text; see `continuation`.
        max_concurrent: most requests at once; null: no limit but the pipeline's.
        probe: whether the canary asks it.
        ca_file: certificates that are trusted instead of the system's.
        allow_private: whether its name may stand for a private address; null: where the URL itself names one.
        allow_metadata: whether it may be a cloud's metadata address.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    url: Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$", max_length=2000)]
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    auth: Literal["bearer", "x-api-key", "api-key"] = "bearer"
    headers: Mapping[str, str] = Field(default_factory=dict)
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    priority: Annotated[int, Field(ge=0, le=100)] = 0
    models: Mapping[str, str] = Field(default_factory=dict)
    apis: tuple[ApiKind, ...] | None = None
    resumable: bool = False
    max_concurrent: Annotated[int, Field(ge=1, le=100_000)] | None = None
    probe: bool = True
    ca_file: str | None = None
    allow_private: bool | None = None
    allow_metadata: bool = False

    @field_validator("models", mode="before")
    @classmethod
    def _map_model_list(cls, models: Any) -> Any:
        """A list of models is those served under their own names."""
        return {one: one for one in models} if isinstance(models, list) else models

    @field_validator("headers")
    @classmethod
    def _reject_secret_headers(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        secret = sorted(name.lower() for name in headers if name.lower() in _SECRET_HEADERS)
        if secret:
            raise ValueError(
                f"{', '.join(secret)} may not stand here; name the key's variable in api_key_env"
            )
        return headers


def _parse_switch(document: Any) -> Any:
    """``on`` means the defaults, ``off`` none."""
    if is_disabled(document):
        return None
    return {} if document is True else document


class HealthOptions(_Section):
    """The heartbeat: a GET to each replica, now and then.

    Attributes:
        path: below the replica's base URL; any status below 500 is a sign of life.
        interval_s: seconds between two.
        timeout_s: longest wait for one.
        unhealthy_threshold: failures in a row after which a replica counts as down.
        healthy_threshold: successes in a row after which it is used again.
    """

    path: Annotated[str, Field(pattern=r"^/[^\s#]*$", max_length=500)] = "/models"
    interval_s: Seconds = 10.0
    timeout_s: Seconds = 3.0
    unhealthy_threshold: Count = 3
    healthy_threshold: Count = 2


class ProbeOptions(_Section):
    """The canary: a small question whose answer is known, asked of each replica now and then.

    A wrong answer means that the replica corrupts what it says, none in time that its engine hangs, though
    its server may still say that it is well.

    Attributes:
        prompt: the question.
        expected: what the answer must have in it; letters' case does not matter.
        model: asked for; null: the first of the replica's models.
        max_tokens: of the answer.
        interval_s: seconds between two.
        timeout_s: longest wait for one.
        failure_threshold: wrong answers in a row after which a replica is used no more, not even in a panic.
        success_threshold: right ones in a row after which it is used again.
        unresponsive_threshold: unanswered ones in a row after which it counts as down.
    """

    prompt: Annotated[str, Field(min_length=1, max_length=2000)]
    expected: Annotated[str, Field(min_length=1, max_length=2000)]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1000)] = 8
    interval_s: Seconds = 60.0
    timeout_s: Seconds = 20.0
    failure_threshold: Count = 2
    success_threshold: Count = 2
    unresponsive_threshold: Count = 2


class QuorumOptions(_Section):
    """Votes on requests that are marked for it.

    Attributes:
        max_replicas: replicas that one request may ask at once, whatever it is marked with.
        max_concurrent: voted requests at once; those beyond get one answer, and a note.
    """

    max_replicas: Annotated[int, Field(ge=1, le=15)] = 5
    max_concurrent: Annotated[int, Field(ge=0, le=10_000)] = 8


class BackendsOptions(_Section):
    """The whole section.

    Attributes:
        replicas: at least one; their order is that of the policy ``priority``.
        load_balancing: which of the usable replicas gets a request: a name, or a mapping with ``name`` and options.
        pipeline: the strategies, outermost first; see `pipelines.read`.
        outlier: ejection of replicas that fail while others don't; null: none.
        health: the heartbeat; null: none.
        probe: the canary; null: none.
        quorum: votes.
        max_stream_resumptions: how often one streamed answer may be continued.
        http: bounds of each replica's connections; see `agentguard.backends.http.Limits`.
    """

    replicas: tuple[ReplicaOptions, ...]
    load_balancing: Any = "least_request"
    pipeline: Any = None
    outlier: Any = True
    health: Annotated[HealthOptions | None, BeforeValidator(_parse_switch)] = HealthOptions()
    probe: Annotated[ProbeOptions | None, BeforeValidator(_parse_switch)] = None
    quorum: Annotated[QuorumOptions | None, BeforeValidator(_parse_switch)] = QuorumOptions()
    max_stream_resumptions: Annotated[int, Field(ge=0, le=10)] = 2
    http: Any = None

    @field_validator("load_balancing", mode="plain")
    @classmethod
    def _parse_load_balancing(cls, document: Any) -> LoadBalancingOptions:
        return _convert_config_error(lambda: _build_policy(document))

    @field_validator("pipeline", mode="plain")
    @classmethod
    def _parse_pipeline(cls, document: Any) -> tuple[ResilienceStrategy, ...]:
        return _convert_config_error(lambda: pipeline_config.parse_pipeline(document))

    @field_validator("outlier", mode="plain")
    @classmethod
    def _parse_outlier(cls, document: Any) -> OutlierDetection | None:
        return (
            None
            if is_disabled(document) or document is None
            else _convert_config_error(lambda: _build_outlier(document))
        )

    @field_validator("http", mode="plain")
    @classmethod
    def _parse_http(cls, document: Any) -> HttpLimits:
        return (
            document
            if isinstance(document, HttpLimits)
            else _convert_config_error(lambda: parse_options(HttpLimits(), document, "http"))
        )

    @model_validator(mode="before")
    @classmethod
    def _apply_defaults(cls, document: Any) -> Any:
        """Let what is left out pass through the same doors."""
        if isinstance(document, Mapping):
            return {
                "load_balancing": "least_request",
                "pipeline": None,
                "outlier": True,
                "http": None,
                **document,
            }
        return document

    @model_validator(mode="after")
    def _check_unique_names(self) -> BackendsOptions:
        names = [replica.name for replica in self.replicas]
        if not 1 <= len(names) <= 1000:
            raise ValueError(f"replicas: there must be from 1 to 1000, not {len(names)}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"replicas: the name {', '.join(twice)} is there twice")
        return self

    @classmethod
    def parse(cls, document: object, *, source: str = "backends") -> BackendsOptions:
        """Validate a parsed section. Raises ConfigError with every field that is wrong."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ConfigError(f"{source}: {format_validation_error(error, cls)}") from None


def _convert_config_error(build: Callable[[], T]) -> T:
    """What is made, its ConfigError as the ValueError that pydantic puts a path to."""
    try:
        return build()
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _build_policy(document: object) -> LoadBalancingOptions:
    if isinstance(document, str):
        name, options = document, {}
    elif isinstance(document, Mapping) and isinstance(document.get("name"), str):
        name, options = document["name"], {key: value for key, value in document.items() if key != "name"}
    elif not isinstance(document, Mapping) and hasattr(document, "build"):
        return cast(LoadBalancingOptions, document)  # made in code
    else:
        raise ConfigError("must be a name, or a mapping with name and options")
    factory = get_policy_factory(name)
    return parse_options(factory(), options, name)


def _build_outlier(document: object) -> OutlierDetection:
    return (
        document
        if isinstance(document, OutlierDetection)
        else parse_options(OutlierDetection(), document, "outlier")
    )
