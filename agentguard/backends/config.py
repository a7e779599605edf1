"""The ``backends`` section of the configuration: replicas, load balancing, resilience and health checks.

::

    backends:
      replicas:
        - {name: a, url: "http://127.0.0.1:8000/v1", models: {gpt-5: qwen3}, resumable: true}
        - {name: b, url: "http://127.0.0.1:8001/v1", models: {gpt-5: qwen3}, resumable: true, weight: 2}
        - {name: c, url: "https://api.example.com/v1", api_key_env: EXAMPLE_KEY, priority: 1}
      load_balancing: least_request            # or {name: prefix_affinity, max_load_factor: 1.5}
      pipeline: {retry: {max_attempts: 3}, hedge: off}
      outlier: {consecutive_failures: 5}
      health: {path: /models, interval_s: 10}
      probe: {prompt: "Reply with the one word: seven", expected: seven}
      quorum: {max_replicas: 3}

The section never contains keys: ``api_key_env`` names the environment variable with the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
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
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.load_balancing.base import LoadBalancingOptions, get_policy_factory
from agentguard.config.policy import format_validation_error
from agentguard.errors import ConfigError
from agentguard.options import is_disabled, parse_options
from agentguard.resilience import OutlierDetectionOptions, StrategyOptions

T = TypeVar("T")
ApiKind = Literal["chat", "completions", "embeddings", "responses", "messages"]
Seconds = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1000)]

ANY_MODEL = "*"
"""Wildcard: as a requested model it matches all others; as a served name it is the requested name."""

_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class ReplicaOptions(_Section):
    """Options of one endpoint.

    Attributes:
        name: unique name in logs, metrics, headers and status.
        url: base URL to which the API's path is appended, e.g. ``http://127.0.0.1:8000/v1``.
        api_key_env: environment variable with the API key.
        api_key_file: file with the API key, which may change at any time; for access tokens that expire.
        auth: header that carries the key: ``Authorization: Bearer``, or the header of that name.
        headers: additional headers of every request; the configuration rejects secret headers.
        query: additional query parameters of every request, such as ``api-version``.
        weight: relative share of the load.
        priority: failover level; a higher level is used only if too few replicas of lower levels are usable.
        models: served name by requested model; empty: all models, under the requested name.
        apis: supported APIs; null: all.
        resumable: permits the resumption of an interrupted stream from its text.
        max_concurrent: maximum number of concurrent requests; null: only the pipeline's limit applies.
        probe: tests the replica with the known-answer probe.
        ca_file: file with trusted certificates, instead of those of the system.
        allow_private: permits a private address of the host; null: only if the URL implies it.
        allow_metadata: permits the metadata address of a cloud.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    url: Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$", max_length=2000)]
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    api_key_file: Path | None = None
    auth: Literal["bearer", "x-api-key", "api-key"] = "bearer"
    headers: Mapping[str, str] = Field(default_factory=dict)
    query: Mapping[Annotated[str, Field(min_length=1)], str] = Field(default_factory=dict)
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

    @model_validator(mode="after")
    def _require_one_key(self) -> ReplicaOptions:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file exclude each other")
        return self

    @field_validator("models", mode="before")
    @classmethod
    def _map_model_list(cls, models: Any) -> Any:
        """Convert a list of models to a mapping of each name to itself."""
        return {one: one for one in models} if isinstance(models, list) else models

    @field_validator("headers")
    @classmethod
    def _reject_secret_headers(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        secret = sorted(name.lower() for name in headers if name.lower() in _SECRET_HEADERS)
        if secret:
            raise ValueError(f"{', '.join(secret)} contains a secret; name its variable in api_key_env")
        return headers


def _parse_switch(document: Any) -> Any:
    """Convert ``on`` to the defaults and ``off`` to None."""
    if is_disabled(document):
        return None
    return {} if document is True else document


class HealthOptions(_Section):
    """Options of the health check: a periodic GET to each replica.

    Attributes:
        path: path below the replica's base URL; any status below 500 counts as healthy.
        interval_s: seconds between two checks.
        timeout_s: time limit of one check.
        unhealthy_threshold: consecutive failures after which a replica counts as down.
        healthy_threshold: consecutive successes after which the replica counts as up.
    """

    path: Annotated[str, Field(pattern=r"^/[^\s#]*$", max_length=500)] = "/models"
    interval_s: Seconds = 10.0
    timeout_s: Seconds = 3.0
    unhealthy_threshold: Count = 3
    healthy_threshold: Count = 2


class ProbeOptions(_Section):
    """Options of the known-answer probe: a periodic question to each replica whose answer is known.

    A wrong answer shows that the replica corrupts its output. A missing answer shows that its engine hangs,
    even if its server passes the health check.

    Attributes:
        prompt: the question.
        expected: text that the answer must contain; case is ignored.
        model: requested model; null: the first of the replica's models.
        max_tokens: token limit of the answer.
        interval_s: seconds between two probes.
        timeout_s: time limit of one probe.
        failure_threshold: consecutive wrong answers after which a replica is excluded, even in panic mode.
        success_threshold: consecutive right answers after which the replica is included again.
        unresponsive_threshold: consecutive missing answers after which the replica counts as down.
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
    """Options of votes on requests that are marked for them.

    Attributes:
        max_replicas: maximum number of replicas per request; it limits the number in the request.
        max_concurrent: maximum number of concurrent votes; further requests get one reply and a note.
    """

    max_replicas: Annotated[int, Field(ge=1, le=15)] = 5
    max_concurrent: Annotated[int, Field(ge=0, le=10_000)] = 8


class BackendsOptions(_Section):
    """Section ``backends``: model endpoints, and the strategies in front of them.

    Attributes:
        replicas: at least one replica; the policy ``priority`` uses their order.
        load_balancing: policy that chooses a usable replica: a name, or a mapping with ``name`` and options.
        pipeline: resilience strategies, outermost first.
        outlier: ejection of replicas that fail while others succeed; null: off.
        health: health check; null: off.
        probe: known-answer probe; null: off.
        quorum: votes; null: off.
        max_stream_resumptions: maximum number of resumptions of one stream.
        http: limits of the connections to each replica.
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
    def _parse_pipeline(cls, document: Any) -> tuple[StrategyOptions, ...]:
        return _convert_config_error(lambda: pipeline_config.parse_pipeline(document))

    @field_validator("outlier", mode="plain")
    @classmethod
    def _parse_outlier(cls, document: Any) -> OutlierDetectionOptions | None:
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
        """Add the defaults, so that the validators parse them too."""
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
            raise ValueError(f"replicas: between 1 and 1000 are required, not {len(names)}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"replicas: the name {', '.join(twice)} occurs twice")
        return self

    @classmethod
    def parse(cls, document: object, *, source: str = "backends") -> BackendsOptions:
        """Validate a parsed section. Raises ConfigError with all invalid fields."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ConfigError(f"{source}: {format_validation_error(error, cls)}") from None


def _convert_config_error(build: Callable[[], T]) -> T:
    """Call ``build``; convert its ConfigError to a ValueError, to which pydantic adds the path."""
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
        return cast(LoadBalancingOptions, document)  # a policy object
    else:
        raise ConfigError("must be a name, or a mapping with name and options")
    factory = get_policy_factory(name)
    return parse_options(factory(), options, name)


def _build_outlier(document: object) -> OutlierDetectionOptions:
    return (
        document
        if isinstance(document, OutlierDetectionOptions)
        else parse_options(OutlierDetectionOptions(), document, "outlier")
    )
