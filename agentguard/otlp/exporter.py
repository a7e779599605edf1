"""Export of spans to a collector over OTLP/HTTP: in batches, with retries that respect Retry-After.

The exporter retries as the OpenTelemetry Protocol specifies: status 429, 502, 503 and 504, and requests that
did not arrive. It does not follow redirects, because headers contain secrets and must only reach the
configured endpoint. Errors and logs contain neither headers nor text of a response.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import orjson

from agentguard.errors import BackendError, ConfigError, DeadlineExceeded, MissingExtra
from agentguard.otlp import encoding as otlp_encoding
from agentguard.otlp.model import OtlpSpan
from agentguard.resilience import (
    AttemptTimeoutOptions,
    Backoff,
    BasicRequest,
    Deadline,
    Pipeline,
    RetryOptions,
    TimeoutOptions,
    parse_pushback,
)
from agentguard.version import __version__

if TYPE_CHECKING:
    import httpx2

_RETRYABLE_STATUSES: Final = frozenset({429, 502, 503, 504})
_MAX_BATCH_RECORDS: Final = 256
_MAX_BATCH_BYTES: Final = 2 * 1024 * 1024
_MIN_COMPRESSED_BYTES: Final = 1024
_MAX_RESPONSE_BYTES: Final = 64 * 1024
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a field name of RFC 9110
_TRACES_PATH: Final = "/v1/traces"
_RESERVED_HEADERS: Final = frozenset(
    {"content-type", "content-encoding", "content-length", "host", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """Collector and options of the export to it.

    Attributes:
        endpoint: URL for traces; without a path, ``/v1/traces`` is appended.
        headers: sent with every request, e.g. ``Authorization``; never shown.
        logs_endpoint: URL for evaluations as log records; None sends them as events of their spans.
        encoding: ``protobuf``, which every collector accepts, or ``json``.
        service_name: name of the service of the spans.
        attempt_timeout_s, total_timeout_s: time for one attempt, and for all attempts with their waits.

    Raises:
        ConfigError: a URL is not http or https, or a header is invalid.
    """

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    logs_endpoint: str | None = None
    encoding: otlp_encoding.Encoding = "protobuf"
    service_name: str = "agentguard"
    attempt_timeout_s: float = 10.0
    total_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "endpoint", _normalize_endpoint(self.endpoint))
        if self.logs_endpoint is not None:
            object.__setattr__(self, "logs_endpoint", _normalize_endpoint(self.logs_endpoint))
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
                raise ConfigError("a header must be one line of ASCII: write NAME=VALUE")
            if name.lower() in _RESERVED_HEADERS:
                raise ConfigError(f"the header {name} is set by agentguard itself")

    @property
    def host(self) -> str:
        """Name of the collector, for display."""
        return urlsplit(self.endpoint).netloc

    @classmethod
    def from_environment(
        cls,
        endpoint: str | None,
        headers: Mapping[str, str],
        environment: Mapping[str, str],
        **more: Any,
    ) -> ExportTarget:
        """Return a target from the arguments, with OpenTelemetry's environment variables as defaults.

        The variables are ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, ``OTEL_EXPORTER_OTLP_ENDPOINT`` (to which
        ``/v1/traces`` is added), ``OTEL_EXPORTER_OTLP_HEADERS`` and ``OTEL_EXPORTER_OTLP_TRACES_HEADERS``.

        Raises:
            ConfigError: the endpoint is missing or invalid.
        """
        base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").rstrip("/")
        target_endpoint = (
            endpoint
            or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            or (base and base + _TRACES_PATH)
        )
        if not target_endpoint:
            raise ConfigError(
                "there is no collector: give --otlp-endpoint http://HOST:4318/v1/traces, or set "
                "OTEL_EXPORTER_OTLP_ENDPOINT"
            )
        all_headers: dict[str, str] = {}
        for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
            all_headers |= parse_header_list(environment.get(name, ""))
        return cls(endpoint=target_endpoint, headers={**all_headers, **headers}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Result of an export.

    Attributes:
        spans, events: number sent.
        requests: number of requests, without retries.
        rejected: number of spans and events that the collector reported as rejected.
        messages: explanations of the collector.
    """

    spans: int = 0
    events: int = 0
    requests: int = 0
    rejected: int = 0
    messages: tuple[str, ...] = ()


def parse_header(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE`` or ``NAME: VALUE`` as a header. Raises ConfigError, without the text."""
    name, sign, value = text.partition("=")
    if ":" in name or not sign:
        name, sign, value = text.partition(":")
    if not sign or not _HEADER_NAME.fullmatch(name.strip()):
        raise ConfigError("--otlp-header takes NAME=VALUE")
    return name.strip(), value.strip()


def send(target: ExportTarget, spans: Iterable[OtlpSpan]) -> ExportResult:
    """Send spans and wait. See `send_async`; do not call it in a running event loop."""
    return asyncio.run(send_async(target, spans))


async def send_async(target: ExportTarget, spans: Iterable[OtlpSpan]) -> ExportResult:
    """Send spans in batches, one after the other.

    Raises:
        BackendError: the collector refused a batch; earlier batches have arrived.
        DeadlineExceeded, RetriesExhausted: the collector did not answer, or not in time.
        MissingExtra: the extra ``otel`` is not installed.
    """
    async with SpanSender(target) as sender:
        return await sender.send(spans)


class SpanSender:
    """Sender with a persistent connection to a collector; raises the errors of `send_async`."""

    def __init__(self, target: ExportTarget) -> None:
        otlp_encoding.check_encoding(target.encoding)
        self._target, self._client = target, _create_client(target)

    async def __aenter__(self) -> SpanSender:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def send(self, spans: Iterable[OtlpSpan]) -> ExportResult:
        """Send spans in batches, one after the other."""
        target = self._target
        has_logs_endpoint = target.logs_endpoint is not None
        all_spans = list(spans)
        result = ExportResult(spans=len(all_spans), events=sum(len(span.events) for span in all_spans))
        batch_sender = _BatchSender(self._client, target)
        for batch in _split_batches(
            otlp_encoding.build_span_data(span, include_events=not has_logs_endpoint) for span in all_spans
        ):
            result = _add_response(result, await batch_sender.send("traces", target.endpoint, batch))
        if target.logs_endpoint is not None:
            for batch in _split_batches(
                record for span in all_spans for record in otlp_encoding.build_log_records(span)
            ):
                result = _add_response(result, await batch_sender.send("logs", target.logs_endpoint, batch))
        return result


class _BatchSender:
    """Sender of one batch, with retries."""

    def __init__(self, client: httpx2.AsyncClient, target: ExportTarget) -> None:
        self._client, self._target = client, target
        strategies = (
            TimeoutOptions(total_s=target.total_timeout_s),
            RetryOptions(
                max_attempts=5,
                backoff=Backoff(initial_delay_s=0.5, max_delay_s=10.0),
                statuses=_RETRYABLE_STATUSES,
            ),
            AttemptTimeoutOptions(seconds=target.attempt_timeout_s),
        )
        self._send = Pipeline(strategies).bind(self._send_once)

    async def send(
        self, signal: otlp_encoding.Signal, url: str, batch: Sequence[otlp_encoding.JsonData]
    ) -> otlp_encoding.CollectorResponse:
        """Send a batch. Sending it twice is harmless, because the ids are stable."""
        target = self._target
        data = otlp_encoding.build_request_data(signal, batch, service=target.service_name)
        body, headers = _compress(otlp_encoding.encode_request(signal, data, target.encoding))
        headers["content-type"] = otlp_encoding.CONTENT_TYPES[target.encoding]
        answer = await self._send(BasicRequest(payload=(url, body, headers)), Deadline.never())
        return otlp_encoding.parse_response(signal, answer, target.encoding)

    async def _send_once(self, request: BasicRequest, _deadline: Deadline) -> bytes:
        import httpx2

        url, body, headers = request.payload
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as response:
                if response.status_code != 200:
                    raise _to_error(response)
                return await _read_body(response)
        except httpx2.TimeoutException:
            raise DeadlineExceeded("the collector did not answer in time", stage="sent") from None
        except httpx2.TransportError as error:
            unsent = isinstance(error, httpx2.ConnectError)
            raise BackendError(
                f"the collector could not be reached ({type(error).__name__})",
                stage="unsent" if unsent else "sent",
            ) from None


def _create_client(target: ExportTarget) -> httpx2.AsyncClient:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("httpx2", "otel") from None
    return httpx2.AsyncClient(
        headers={
            **target.headers,
            "user-agent": f"agentguard/{__version__}",
            "accept-encoding": "identity",
        },
        timeout=target.attempt_timeout_s,
        follow_redirects=False,
    )


async def _read_body(response: httpx2.Response) -> bytes:
    """Return the body of a response, or nothing if it is larger than the protocol requires."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _MAX_RESPONSE_BYTES:
            return b""
    return body


def _to_error(response: httpx2.Response) -> BackendError:
    status = response.status_code
    headers = {name.lower(): value for name, value in response.headers.items()}
    hint = ""
    if status in (401, 403):
        hint = ": it rejects the credentials (--otlp-header)"
    elif 300 <= status < 400:
        hint = ": it redirects to another address: give that address"
    elif status == 415:
        hint = ": it does not support this encoding (--otlp-encoding)"
    return BackendError(
        f"the collector answered {status}{hint}",
        status=status,
        stage="sent",
        retry_after_s=parse_pushback(headers),
    )


def _compress(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body, compressed if it is large enough."""
    if len(body) < _MIN_COMPRESSED_BYTES:
        return body, {}
    return gzip.compress(body, 6, mtime=0), {"content-encoding": "gzip"}


def _split_batches(records: Iterable[otlp_encoding.JsonData]) -> Iterator[list[otlp_encoding.JsonData]]:
    """Yield records in batches of limited count and size."""
    batch: list[otlp_encoding.JsonData] = []
    size = 0
    for record in records:
        record_size = len(orjson.dumps(record))
        if batch and (len(batch) >= _MAX_BATCH_RECORDS or size + record_size > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record_size
    if batch:
        yield batch


def _add_response(found: ExportResult, answer: otlp_encoding.CollectorResponse) -> ExportResult:
    messages = (*found.messages, answer.message) if answer.message else found.messages
    return ExportResult(
        spans=found.spans,
        events=found.events,
        requests=found.requests + 1,
        rejected=found.rejected + answer.rejected,
        messages=tuple(dict.fromkeys(messages)),
    )


def _normalize_endpoint(url: str) -> str:
    """Return the complete URL of a collector. Raises ConfigError, without any password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("the collector's address is not valid; write http://HOST:PORT/v1/traces") from None
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise ConfigError("the collector's address is not valid; write http://HOST:PORT/v1/traces")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the collector's address contains credentials; use --otlp-header")
    if parts.path not in ("", "/"):
        return url
    return urlunsplit((parts.scheme, parts.netloc, _TRACES_PATH, parts.query, parts.fragment))


def parse_header_list(text: str) -> dict[str, str]:
    """Parse headers of OpenTelemetry's variables: ``k1=v1,k2=v2``, values percent-encoded."""
    pairs = (one.partition("=") for one in text.split(",") if one.strip())
    return {unquote(name.strip()): unquote(value.strip()) for name, sign, value in pairs if sign}
