"""Configuration of the proxy: one YAML document with a section per component.

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

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentguard.backends.config import BackendsOptions
from agentguard.config.policy import format_validation_error
from agentguard.config.prices import TokenPrice
from agentguard.errors import ConfigError
from agentguard.loopback import is_loopback
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions
from agentguard_server.proxy.telemetry.options import LogsOptions, MetricsOptions, TracingOptions


class UiOptions(BaseModel):
    """Section ``ui``: the viewer under ``/ui``. It needs a store, and keys with the scope ``read``.

    Attributes:
        enabled: enables the viewer.
        store: path or URL of the store with the runs; null for the store of ``capture``.
        evals: files and folders with saved evaluations.
        session_lifetime_s: seconds after which a browser must send its key again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    store: Annotated[str | None, Field(min_length=1, max_length=4096, repr=False)] = None
    evals: tuple[Path, ...] = ()
    session_lifetime_s: Annotated[float, Field(ge=60, le=2_592_000)] = 43_200.0


class ClusterOptions(BaseModel):
    """Section ``cluster``: state shared with other workers and machines. Without it, they share no state.

    Attributes:
        store: database: ``postgresql://…`` for several machines; an SQLite file suffices for several
            workers of one machine. Null for the store of ``capture``.
        sessions: lets another worker or machine continue a guarded conversation.
        health_hints: shares hints about failing replicas, so that other proxies avoid them for a while.
        poll_interval_s: seconds between two polls of the hints.
        lookup_timeout_s: time limit for the lookup of a conversation that may have begun at another worker.
        ttl_s: lifetime of a conversation after its last request, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str | None, Field(min_length=1, max_length=4096, repr=False)] = None
    sessions: bool = True
    health_hints: bool = True
    poll_interval_s: Annotated[float, Field(ge=0.05, le=60)] = 1.0
    lookup_timeout_s: Annotated[float, Field(ge=0.01, le=10)] = 0.25
    ttl_s: Annotated[float, Field(ge=60, le=31_536_000)] = 86_400.0


Scope = Literal["call", "read", "admin"]
"""``call``: send requests to models. ``read``: see status and runs. ``admin``: change replicas and sessions;
includes ``read``."""

TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_TIMEOUT_BOUNDS = Field(gt=0, le=86_400, allow_inf_nan=False)


class _ConfigSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TlsOptions(_ConfigSection):
    """Section ``listen.tls``: TLS of the listener. Relative paths begin at the working directory.

    Attributes:
        cert_file: certificate and its intermediates, PEM.
        key_file: private key without a passphrase, PEM.
        client_ca_file: certificates of the authorities that sign client certificates; with it, a client
            without a valid certificate cannot connect.
        min_version: oldest accepted version of TLS.
        reload_interval_s: seconds between two checks of the files for changes.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    min_version: Literal["1.2", "1.3"] = "1.2"
    reload_interval_s: Annotated[float, Field(ge=0.05, le=86_400)] = 10.0


class ListenOptions(_ConfigSection):
    """Section ``listen``: address and processes of the proxy.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 lets the system choose one.
        workers: number of processes that share the port.
        shutdown_timeout_s: time limit in seconds for open requests while the proxy drains.
        allow_unauthenticated: permits a non-loopback address without configured keys.
        tls: certificate and key; null for plain HTTP.
    """

    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    shutdown_timeout_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 30.0
    allow_unauthenticated: bool = False
    tls: TlsOptions | None = None


class LimitsOptions(_ConfigSection):
    """Section ``limits``: limits on clients.

    Attributes:
        max_header_bytes: size of the request line and all headers; 431 above it.
        max_headers: number of headers of a request; 431 above it.
        max_body_bytes: size of a request body; 413 above it, before the proxy reads the body.
        max_buffered_bytes: size of all bodies that a worker reads at once; 503 above it.
        header_timeout_s: time limit in seconds for the headers of a request; the proxy then closes the
            connection.
        body_timeout_s: time limit in seconds for the body of a request; then 408.
        keepalive_timeout_s: time in seconds after which the proxy closes an idle connection.
        write_timeout_s: time limit in seconds for the client to read pending data; the proxy then closes the
            connection.
        websocket_idle_timeout_s: time in seconds without data after which the proxy closes a WebSocket.
        max_connections: open connections of a worker; 503 above it.
        max_requests: requests in flight of a worker; 503 above it.
    """

    max_header_bytes: Annotated[int, Field(ge=1024, le=16_777_216)] = 65_536
    max_headers: Annotated[int, Field(ge=8, le=10_000)] = 200
    max_body_bytes: Annotated[int, Field(ge=1024, le=4_294_967_296)] = 33_554_432
    max_buffered_bytes: Annotated[int, Field(ge=1024, le=68_719_476_736)] = 268_435_456
    header_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 10.0
    body_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 30.0
    keepalive_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 75.0
    write_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 30.0
    websocket_idle_timeout_s: Annotated[float, _TIMEOUT_BOUNDS] = 600.0
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 4096


BudgetPeriod = Literal["day", "month", "total"]


class SpendingBudgetOptions(_ConfigSection):
    """Spending budget of a key or tenant. It needs prices, and a store for the spending.

    Attributes:
        max_usd: US dollars in a period; the proxy rejects further requests until the next period.
        period: ``day`` and ``month`` begin at midnight UTC; ``total`` has no end.
    """

    max_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    period: BudgetPeriod = "month"


class ClientLimits(_ConfigSection):
    """Limits of one key, or of all keys of one tenant together; null for no limit.

    Attributes:
        requests_per_minute: rate of requests; also the largest burst, after a minute without requests.
        tokens_per_minute: rate of input and output tokens. The tokens of a request count when its response
            ends. Requests in flight can therefore exceed the rate; later requests then wait longer.
        max_concurrent: number of requests in flight.
        budget: spending budget.
    """

    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    budget: SpendingBudgetOptions | None = None


class KeyOptions(_ConfigSection):
    """API key; the configuration has only its hash.

    Attributes:
        name: name of the key in logs and metrics.
        hash: ``sha256:`` and the SHA-256 of the key in hexadecimal. ``agentguard serve --new-key`` generates
            a key and its hash.
        tenant: tenant whose runs the key can see.
        scopes: permissions of the key.
        limits: limits of the key.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", repr=False)]
    tenant: TenantName | Literal[""] = ""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = ("call",)
    limits: ClientLimits = ClientLimits()


class ProxySettings(_ConfigSection):
    """Validated configuration of the proxy; immutable.

    Attributes:
        version: version of the format.
        keys: API keys; null accepts every client, and is permitted only on loopback.
        tenants: limits by tenant.
        prices: price by pattern of model names; the first match applies.
        backends: model endpoints and the strategies in front of them.
    """

    version: Literal[1] = 1
    listen: ListenOptions = ListenOptions()
    limits: LimitsOptions = LimitsOptions()
    keys: tuple[KeyOptions, ...] | None = None
    tenants: Mapping[TenantName, ClientLimits] = Field(default_factory=dict)
    prices: Mapping[str, TokenPrice] = Field(default_factory=dict)
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
            raise ValueError(
                "an empty list accepts no client: remove the list to accept all clients, or create a key"
            )
        for field, values in (
            ("name", [key.name for key in keys or ()]),
            ("hash", [key.hash for key in keys or ()]),
        ):
            if len(set(values)) != len(values):
                raise ValueError(f"two keys have the same {field}")
        return keys

    @model_validator(mode="after")
    def _require_keys_off_loopback(self) -> Self:
        listen = self.listen
        if self.keys is None and not listen.allow_unauthenticated and not is_loopback(listen.host):
            raise ValueError(
                f"listening on {listen.host} needs API keys: create one with `agentguard serve --new-key`, "
                "or set --no-keys if a component in front of the proxy authenticates clients"
            )
        return self

    @model_validator(mode="after")
    def _require_tenants_of_keys(self) -> Self:
        known = {key.tenant for key in self.keys or ()}
        if unknown := sorted(set(self.tenants) - known):
            raise ValueError(f"tenants: no key has the tenant {', '.join(unknown)}")
        return self

    @property
    def has_budgets(self) -> bool:
        """Return whether a key or tenant has a spending budget."""
        limits = (*self.tenants.values(), *(key.limits for key in self.keys or ()))
        return any(one.budget is not None for one in limits)

    @model_validator(mode="after")
    def _require_prices_for_budgets(self) -> Self:
        if self.has_budgets and not self.prices:
            raise ValueError("prices: a budget needs the prices of the models")
        return self

    @classmethod
    def parse(cls, data: object, *, source: str = "the configuration") -> ProxySettings:
        """Validate a parsed configuration. Raises ConfigError that lists every invalid field."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(f"{source}: {format_validation_error(error, cls)}") from None
