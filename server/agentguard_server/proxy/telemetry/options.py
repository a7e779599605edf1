"""Telemetry sections of the proxy's configuration: ``metrics``, ``logs`` and ``tracing``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentguard.errors import ConfigError

if TYPE_CHECKING:
    from agentguard.otlp.exporter import ExportTarget

LogLevel = Literal["debug", "info", "warning", "error"]


class MetricsOptions(BaseModel):
    """Section ``metrics``: metrics and their cardinality.

    Attributes:
        enabled: enables metrics; without them, ``/metrics`` responds with 404.
        max_models: maximum number of models with a label value; further models have the label ``other``. A
            model gets a label value with its first successful response.
        max_series: maximum number of label combinations; further ones count without model and tenant.
        histogram_buckets: upper bounds of the time histograms in seconds, in ascending order.
        tokens: counts the tokens of responses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    max_models: Annotated[int, Field(ge=1, le=1000)] = 64
    max_series: Annotated[int, Field(ge=10, le=100_000)] = 2000
    histogram_buckets: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = (
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0
    )  # fmt: skip
    tokens: bool = True

    @field_validator("histogram_buckets")
    @classmethod
    def _require_rising_buckets(cls, bounds: tuple[float, ...]) -> tuple[float, ...]:
        if not 1 <= len(bounds) <= 50 or list(bounds) != sorted(set(bounds)):
            raise ValueError("1 to 50 bounds in seconds, each larger than the one before")
        return bounds


class LogsOptions(BaseModel):
    """Section ``logs``: JSON lines about requests and events.

    Attributes:
        level: minimum level.
        access_log: logs each request.
        output: ``stderr``, ``stdout``, or the path of a file that only its owner can read.
        include_bodies: logs bodies of requests and responses. The log never contains API keys.
        max_chars: upper bound on the length of a logged body.
        max_queue: upper bound on queued lines; the worker drops and counts further lines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: LogLevel = "info"
    access_log: bool = True
    output: Annotated[str, Field(min_length=1, max_length=4096)] = "stderr"
    include_bodies: bool = False
    max_chars: Annotated[int, Field(ge=0, le=10_000_000)] = 20_000
    max_queue: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000


class TracingOptions(BaseModel):
    """Section ``tracing``: OpenTelemetry spans over OTLP/HTTP; disabled without an endpoint.

    Attributes:
        endpoint: URL of an OpenTelemetry collector; ``/v1/traces`` is added to a URL without a path.
        headers: headers of each batch; not for secrets, see ``headers_env``.
        headers_env: environment variable with more headers, as ``NAME=VALUE,NAME=VALUE``.
        encoding: ``protobuf``, which every collector supports, or ``json``.
        service_name: service name of the spans.
        capture_content: adds the messages of requests and responses to the spans.
        max_chars: upper bound on the length of a text in a span.
        sample_ratio: share of new traces to record. For a trace of the client, the client's flag decides.
        max_queue: upper bound on queued spans; the worker drops and counts further spans.
        flush_interval_s: seconds between two batches.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: Annotated[str, Field(max_length=2048)] | None = None
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    headers_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    encoding: Literal["protobuf", "json"] = "protobuf"
    service_name: Annotated[str, Field(min_length=1, max_length=256)] = "agentguard"
    capture_content: bool = False
    max_chars: Annotated[int, Field(ge=0, le=10_000_000)] = 20_000
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    max_queue: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    flush_interval_s: Annotated[float, Field(ge=0.05, le=300)] = 2.0

    @model_validator(mode="after")
    def _require_valid_target(self) -> Self:
        if self.endpoint is not None:
            try:
                self._build_target({})
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self

    def resolve_target(self, environment: Mapping[str, str] = os.environ) -> ExportTarget | None:
        """Return the export target of spans; None without an endpoint.

        Raises:
            ConfigError: the variable in ``headers_env`` is not set or has no headers.
        """
        if self.endpoint is None:
            return None
        if self.headers_env is None:
            return self._build_target({})
        from agentguard.otlp.exporter import parse_header_list

        if not environment.get(self.headers_env):
            raise ConfigError(f"tracing.headers_env: the environment has no variable {self.headers_env}")
        headers = parse_header_list(environment[self.headers_env])
        if not headers:
            raise ConfigError(f"tracing.headers_env: {self.headers_env} is not NAME=VALUE,NAME=VALUE")
        return self._build_target(headers)

    def _build_target(self, extra_headers: Mapping[str, str]) -> ExportTarget:
        from agentguard.otlp.exporter import ExportTarget

        return ExportTarget(
            endpoint=self.endpoint or "",
            headers={**self.headers, **extra_headers},
            encoding=self.encoding,
            service_name=self.service_name,
            attempt_timeout_s=5.0,
            total_timeout_s=20.0,
        )
