"""The ``backends`` section of the configuration: replicas, and how requests are brought to them.

::

    backends:
      replicas:
        - {name: a, url: "http://127.0.0.1:8000/v1", models: {gpt-5: qwen3}, continues: true}
        - {name: b, url: "http://127.0.0.1:8001/v1", models: {gpt-5: qwen3}, continues: true, weight: 2}
        - {name: c, url: "https://api.example.com/v1", api_key_env: EXAMPLE_KEY, tier: 1}
      policy: least_load                       # or {name: prefix, bound: 1.5}
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
from agentguard.backends.load_balancing.base import LoadBalancingOptions, policy_factory
from agentguard.config.policy import format_validation_error
from agentguard.errors import ConfigError
from agentguard.resilience import Outlier, ResilienceStrategy

T = TypeVar("T")
ApiKind = Literal["chat", "completions", "embeddings", "responses", "messages"]
Seconds = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
Times = Annotated[int, Field(ge=1, le=1000)]

ANY = "*"
"""As a model that is asked for: any other; as the name it is served under: the one that was asked for."""

_SECRET = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})


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
        tier: replicas of a higher tier are used only while too few of the lower ones can be.
        models: model that is asked for to the name that it serves it under; empty: all models, as asked.
        apis: the APIs that it speaks; null: all.
        continues: whether a broken answer may be continued from its text; see `continuation`.
        max_concurrent: most requests at once; null: no limit but the pipeline's.
        canary: whether the canary asks it.
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
    tier: Annotated[int, Field(ge=0, le=100)] = 0
    models: Mapping[str, str] = Field(default_factory=dict)
    apis: tuple[ApiKind, ...] | None = None
    continues: bool = False
    max_concurrent: Annotated[int, Field(ge=1, le=100_000)] | None = None
    canary: bool = True
    ca_file: str | None = None
    allow_private: bool | None = None
    allow_metadata: bool = False

    @field_validator("models", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        """A list of models is those served under their own names."""
        return {one: one for one in given} if isinstance(given, list) else given

    @field_validator("headers")
    @classmethod
    def _no_secret(cls, given: Mapping[str, str]) -> Mapping[str, str]:
        secret = sorted(name.lower() for name in given if name.lower() in _SECRET)
        if secret:
            raise ValueError(
                f"{', '.join(secret)} may not stand here; name the key's variable in api_key_env"
            )
        return given


def _default_if_on(given: Any) -> Any:
    """``on`` means the defaults, ``off`` none."""
    if is_disabled(given):
        return None
    return {} if given is True else given


class HealthOptions(_Section):
    """The heartbeat: a GET to each replica, now and then.

    Attributes:
        path: below the replica's base URL; any status below 500 is a sign of life.
        interval_s: seconds between two.
        timeout_s: longest wait for one.
        down_after: failures in a row after which a replica counts as down.
        up_after: successes in a row after which it is used again.
    """

    path: Annotated[str, Field(pattern=r"^/[^\s#]*$", max_length=500)] = "/models"
    interval_s: Seconds = 10.0
    timeout_s: Seconds = 3.0
    down_after: Times = 3
    up_after: Times = 2


class CanaryOptions(_Section):
    """The canary: a small question whose answer is known, asked of each replica now and then.

    A wrong answer means that the replica corrupts what it says, none in time that its engine hangs, though
    its server may still say that it is well.

    Attributes:
        ask: the question.
        expect: what the answer must have in it; letters' case does not matter.
        model: asked for; null: the first of the replica's models.
        max_tokens: of the answer.
        interval_s: seconds between two.
        timeout_s: longest wait for one.
        wrong_after: wrong answers in a row after which a replica is used no more, not even in a panic.
        right_after: right ones in a row after which it is used again.
        down_after: unanswered ones in a row after which it counts as down.
    """

    ask: Annotated[str, Field(min_length=1, max_length=2000)]
    expect: Annotated[str, Field(min_length=1, max_length=2000)]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1000)] = 8
    interval_s: Seconds = 60.0
    timeout_s: Seconds = 20.0
    wrong_after: Times = 2
    right_after: Times = 2
    down_after: Times = 2


class VoteOptions(_Section):
    """Votes on requests that are marked for it.

    Attributes:
        most: replicas that one request may ask at once, whatever it is marked with.
        at_once: voted requests at once; those beyond get one answer, and a note.
    """

    most: Annotated[int, Field(ge=1, le=15)] = 5
    at_once: Annotated[int, Field(ge=0, le=10_000)] = 8


class BackendsOptions(_Section):
    """The whole section.

    Attributes:
        replicas: at least one; their order is that of the policy ``priority``.
        policy: which of the usable replicas gets a request: a name, or a mapping with ``name`` and options.
        pipeline: the strategies, outermost first; see `pipelines.read`.
        outlier: ejection of replicas that fail while others don't; null: none.
        health: the heartbeat; null: none.
        canary: the canary; null: none.
        votes: votes.
        continuations: how often one streamed answer may be continued.
        http: bounds of each replica's connections; see `agentguard.backends.http.Limits`.
    """

    replicas: tuple[ReplicaOptions, ...]
    policy: Any = "least_load"
    pipeline: Any = None
    outlier: Any = True
    health: Annotated[HealthOptions | None, BeforeValidator(_default_if_on)] = HealthOptions()
    canary: Annotated[CanaryOptions | None, BeforeValidator(_default_if_on)] = None
    votes: Annotated[VoteOptions | None, BeforeValidator(_default_if_on)] = VoteOptions()
    continuations: Annotated[int, Field(ge=0, le=10)] = 2
    http: Any = None

    @field_validator("policy", mode="plain")
    @classmethod
    def _policy(cls, given: Any) -> LoadBalancingOptions:
        return _checked(lambda: _read_policy(given))

    @field_validator("pipeline", mode="plain")
    @classmethod
    def _pipeline(cls, given: Any) -> tuple[ResilienceStrategy, ...]:
        return _checked(lambda: pipeline_config.read(given))

    @field_validator("outlier", mode="plain")
    @classmethod
    def _outlier(cls, given: Any) -> Outlier | None:
        return None if is_disabled(given) or given is None else _checked(lambda: _read_outlier(given))

    @field_validator("http", mode="plain")
    @classmethod
    def _http(cls, given: Any) -> HttpLimits:
        return (
            given
            if isinstance(given, HttpLimits)
            else _checked(lambda: parse_options(HttpLimits(), given, "http"))
        )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, given: Any) -> Any:
        """Let what is left out pass through the same doors."""
        if isinstance(given, Mapping):
            return {"policy": "least_load", "pipeline": None, "outlier": True, "http": None, **given}
        return given

    @model_validator(mode="after")
    def _unique(self) -> BackendsOptions:
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


def _checked(make: Callable[[], T]) -> T:
    """What is made, its ConfigError as the ValueError that pydantic puts a path to."""
    try:
        return make()
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _read_policy(given: object) -> LoadBalancingOptions:
    if isinstance(given, str):
        name, options = given, {}
    elif isinstance(given, Mapping) and isinstance(given.get("name"), str):
        name, options = given["name"], {key: value for key, value in given.items() if key != "name"}
    elif not isinstance(given, Mapping) and hasattr(given, "build"):
        return cast(LoadBalancingOptions, given)  # made in code
    else:
        raise ConfigError("must be a name, or a mapping with name and options")
    factory = policy_factory(name)
    return parse_options(factory(), options, name)


def _read_outlier(given: object) -> Outlier:
    return given if isinstance(given, Outlier) else parse_options(Outlier(), given, "outlier")
