"""The proxy's configuration: one YAML document, whose sections belong to those who act on them.

::

    version: 1
    listen: {host: 127.0.0.1, port: 8080, workers: 1, shutdown_timeout_s: 30}
    keys:
      - {name: ci, hash: "sha256:…", tenant: team-a, scopes: [call, read], limits: {requests_per_minute: 600}}
    backends:
      replicas: [{name: a, url: "http://127.0.0.1:8000/v1"}]
    guard: guard.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentguard.backends.config import BackendsOptions
from agentguard.config.policy import format_validation_error
from agentguard.errors import ConfigError
from agentguard_server.net import is_loopback
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions
from agentguard_server.proxy.telemetry.options import LogsOptions, MetricsOptions, TracingOptions


class UiOptions(BaseModel):
    """The viewer under ``/ui``; it is there where a store is configured, for keys with the scope ``read``.

    Attributes:
        enabled: whether it is there.
        store: whose runs it shows: a path or URL; null: that of ``capture``.
        evals: files and folders with kept evaluations.
        signed_in_s: seconds after which a browser must show its key again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    store: Annotated[str | None, Field(min_length=1, max_length=4096, repr=False)] = None
    evals: tuple[Path, ...] = ()
    session_lifetime_s: Annotated[float, Field(ge=60, le=2_592_000)] = 43_200.0


class ClusterOptions(BaseModel):
    """What is shared with other workers and machines; without this section each knows its own.

    Attributes:
        store: the database: ``postgresql://…`` for several machines; a file of SQLite does for several
            workers of one. Null: that of ``capture``.
        sessions: whether a guarded conversation may go on at another worker or machine.
        hints: whether replicas that one finds in trouble are left alone by the others for a while.
        every_s: seconds between two looks at the others' hints.
        wait_s: longest wait of a request for a conversation that may have begun elsewhere.
        keep_s: seconds after which a conversation that nobody goes on with is forgotten.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str | None, Field(min_length=1, max_length=4096, repr=False)] = None
    sessions: bool = True
    health_hints: bool = True
    poll_interval_s: Annotated[float, Field(ge=0.05, le=60)] = 1.0
    lookup_timeout_s: Annotated[float, Field(ge=0.01, le=10)] = 0.25
    ttl_s: Annotated[float, Field(ge=60, le=31_536_000)] = 86_400.0


Scope = Literal["call", "read", "admin"]
"""Ask models; see the state and the runs; change replicas and sessions. ``admin`` includes ``read``."""

_TIMEOUT_BOUNDS = Field(gt=0, le=86_400, allow_inf_nan=False)


class _ConfigSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ListenOptions(_ConfigSection):
    """Where the proxy answers.

    Attributes:
        host: address to listen on.
        port: 0 lets the system choose.
        workers: processes that share the port, each with an event loop of its own.
        shutdown_timeout_s: seconds that requests have to end when the proxy does.
        allow_unauthenticated: whether it may listen off loopback with no keys configured.
    """

    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    shutdown_timeout_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 30.0
    allow_unauthenticated: bool = False


class LimitsOptions(_ConfigSection):
    """What a client may use up; uvicorn itself limits none of this.

    Attributes:
        head_bytes: of a request line and its headers; 431 beyond it.
        headers: of one request; 431 beyond it.
        body_bytes: of one request; 413 beyond it, before it is read.
        bodies_bytes: of all requests that are being read at once; 503 beyond it.
        head_s: seconds in which a head must be there; the connection is closed then.
        body_s: seconds in which a body must be there; 408 then.
        idle_s: seconds that a connection is kept open between requests.
        write_s: seconds in which a client must make room for more of an answer; it is cut off then.
        connections: open at once, of one worker; more of them get a 503.
        requests: under way at once, of one worker; more of them get a 503.
    """

    max_header_bytes: Annotated[int, Field(ge=1024, le=16_777_216)] = 65_536
    max_headers: Annotated[int, Field(ge=8, le=10_000)] = 200
    max_body_bytes: Annotated[int, Field(ge=1024, le=4_294_967_296)] = 33_554_432
    max_buffered_bytes: Annotated[int, Field(ge=1024, le=68_719_476_736)] = 268_435_456
    header_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 10.0
    body_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 30.0
    keepalive_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 75.0
    write_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 30.0
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 4096


class KeyLimits(_ConfigSection):
    """What one key may ask for; null is no limit."""

    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None


class KeyOptions(_ConfigSection):
    """One API key, of which only the hash is known.

    Attributes:
        name: in logs and metrics.
        hash: ``sha256:`` and the key's SHA-256 in hexadecimal; ``agentguard serve key`` makes both.
        tenant: whose runs it sees.
        scopes: what it may do.
        limits: how much of it.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", repr=False)]
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = ("call",)
    limits: KeyLimits = KeyLimits()


class ProxySettings(_ConfigSection):
    """The whole configuration, validated; frozen."""

    version: Literal[1] = 1
    listen: ListenOptions = ListenOptions()
    limits: LimitsOptions = LimitsOptions()
    keys: tuple[KeyOptions, ...] | None = None
    backends: BackendsOptions
    guard: GuardOptions | None = None
    capture: CaptureOptions | None = None
    metrics: MetricsOptions = MetricsOptions()
    logs: LogsOptions = LogsOptions()
    tracing: TracingOptions = TracingOptions()
    ui: UiOptions = UiOptions()
    cluster: ClusterOptions | None = None

    @field_validator("keys")
    @classmethod
    def _require_unique_keys(cls, keys: tuple[KeyOptions, ...] | None) -> tuple[KeyOptions, ...] | None:
        if keys is not None and not keys:
            raise ValueError("an empty list lets nobody in: leave it out for no keys, or make one")
        for what in ("name", "hash"):
            given = [getattr(key, what) for key in keys or ()]
            if len(set(given)) != len(given):
                raise ValueError(f"two keys have the same {what}")
        return keys

    @model_validator(mode="after")
    def _require_keys_off_loopback(self) -> Self:
        listen = self.listen
        if self.keys is None and not listen.allow_unauthenticated and not is_loopback(listen.host):
            raise ValueError(
                f"off loopback ({listen.host}) keys are needed: make one with `agentguard serve --new-key`, "
                "or say --no-keys if something before the proxy checks who asks"
            )
        return self

    @classmethod
    def parse(cls, data: object, *, source: str = "the configuration") -> ProxySettings:
        """Validate a parsed configuration. Raises ConfigError with every field that is wrong."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(f"{source}: {format_validation_error(error, cls)}") from None
