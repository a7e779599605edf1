"""The sections of the proxy's configuration about what it tells: ``metrics``, ``logs``, ``spans``."""

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
    """What is counted, and how finely.

    Attributes:
        enabled: whether anything is counted; ``/metrics`` answers 404 if not.
        models: most models that get a label of their own, each once it was answered; others are ``other``.
        series: most combinations of labels; what comes on top is counted without model and tenant.
        buckets: upper bounds of the histograms of time, in seconds, rising.
        tokens: whether the tokens that answers tell of are counted.
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
    """Lines of JSON about requests and events.

    Attributes:
        level: the least that is written.
        access: whether each request gets a line.
        to: ``stderr``, ``stdout``, or the path of a file, which only the owner may read.
        contents: whether bodies of requests and answers are written, too; keys never are.
        most_chars: of a body that is written, at most.
        queue: lines that may wait to be written; what comes on top is lost and counted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: LogLevel = "info"
    access_log: bool = True
    output: Annotated[str, Field(min_length=1, max_length=4096)] = "stderr"
    include_bodies: bool = False
    max_chars: Annotated[int, Field(ge=0, le=10_000_000)] = 20_000
    max_queue: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000


class TracingOptions(BaseModel):
    """Spans of OpenTelemetry, sent over OTLP/HTTP; without an endpoint there are none.

    Attributes:
        endpoint: address of a collector's traces; one without a path gets ``/v1/traces``.
        headers: sent with each batch; not for secrets, see ``headers_env``.
        headers_env: the variable of the environment that holds more headers, as ``NAME=VALUE,NAME=VALUE``.
        encoding: ``protobuf``, which every collector takes, or ``json``.
        service: name of the service that the spans are of.
        contents: whether what was asked and answered is in them.
        most_chars: of a text in them, at most.
        sample: share of the traces that begin here; of those that began before, the client decides.
        queue: spans that may wait; what comes on top is lost and counted.
        every_s: seconds between two batches.
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
        """Where spans go; None if nowhere.

        Raises:
            ConfigError: ``headers_env`` names a variable that is not there, or holds no headers.
        """
        if self.endpoint is None:
            return None
        if self.headers_env is None:
            return self._build_target({})
        from agentguard.otlp.exporter import parse_header_list

        if not environment.get(self.headers_env):
            raise ConfigError(f"spans.headers_env: the environment has no variable {self.headers_env}")
        found = parse_header_list(environment[self.headers_env])
        if not found:
            raise ConfigError(f"spans.headers_env: {self.headers_env} holds no NAME=VALUE,NAME=VALUE")
        return self._build_target(found)

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
