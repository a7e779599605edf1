"""Meter of the tokens that a request uses at the endpoint, for keys with token limits or budgets.

The meter reads the usage that each response reports. It adds ``stream_options.include_usage`` to a stream's
request if the client did not, and removes the additional event from the stream. If a response reports no
usage, for instance because the client disconnects, the meter estimates it from the sizes.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

import msgspec

from agentguard.backends.base import Headers, Response, StreamingResponse
from agentguard.config.prices import PriceTable, TokenPrice, find_price
from agentguard.model_api.sse import parse_event_fast, split_events
from agentguard.trajectory.model import Usage
from agentguard.trajectory.usage import parse_usage
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.hooks import ModelCaller, ProxyRequest

_BYTES_PER_TOKEN: Final = 4
"""Estimate for text in English; other languages and code have fewer bytes per token."""
_USAGE_OPTION: Final = b',"stream_options":{"include_usage":true}}'
_APIS_WITH_OPTION: Final = frozenset({"chat", "completions"})
_USAGE_FIELD: Final = b'"usage"'
_FREE_METHODS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_FREE_PATH_ENDS: Final = ("/count_tokens", "/input_tokens", "/cancel")


class _StreamFields(msgspec.Struct, gc=False):
    stream_options: Any = msgspec.UNSET


class _ResponseFields(msgspec.Struct, gc=False):
    usage: Any = None


_FIELDS_DECODER: Final = msgspec.json.Decoder(_StreamFields)
_RESPONSE_DECODER: Final = msgspec.json.Decoder(_ResponseFields)


def _require_meterable(request: ProxyRequest) -> None:
    """Raise ProxyError with status 403 for a request whose tokens no response reports to the proxy."""
    if request.api:
        if not request.idempotent:
            raise ProxyError(
                403, "not_metered", "a key with token limits cannot send requests with background: true"
            )
        return
    path = request.target.partition("?")[0]
    if request.method not in _FREE_METHODS and not path.endswith(_FREE_PATH_ENDS):
        raise ProxyError(
            403, "not_metered", "the tokens of this path cannot be counted, but this key has token limits"
        )


def _find_budget_price(request: ProxyRequest, prices: PriceTable) -> TokenPrice | None:
    """Return the price of a request's model. Raises ProxyError with status 403 if the model has none."""
    price = find_price(prices, request.model)
    if price is None and request.api:
        raise ProxyError(
            403, "model_not_priced", "this key has a budget, and the configuration has no price of the model"
        )
    return price


class UsageMeter:
    """Meter of one request, over all its model calls.

    Args:
        api: model API of the request.
        price: price of the model; None if it has none.
        votes: number of replicas that answer each call; only one of the answers is visible here.

    Attributes:
        prompt_tokens: input tokens of all calls.
        cached_tokens: part of the input tokens that the endpoint read from its cache.
        completion_tokens: output tokens of all calls.
        cost_usd: cost of all calls: the cost that the endpoint reports, else the price of the tokens.
    """

    __slots__ = (
        "_api",
        "_price",
        "_votes",
        "cached_tokens",
        "completion_tokens",
        "cost_usd",
        "prompt_tokens",
    )

    def __init__(self, api: str, price: TokenPrice | None = None, *, votes: int = 1) -> None:
        self._api, self._price, self._votes = api, price, votes
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.cost_usd = 0.0

    @classmethod
    def for_request(cls, request: ProxyRequest, prices: PriceTable, *, has_budget: bool) -> Self:
        """Return the meter of a request. Raises ProxyError with status 403 if its usage cannot be counted."""
        _require_meterable(request)
        price = _find_budget_price(request, prices) if has_budget else None
        return cls(request.api, price, votes=request.quorum_size)

    @property
    def usage(self) -> Usage:
        """Return the sum of all calls."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            cost_usd=self.cost_usd,
        )

    async def send(self, call_model: ModelCaller, body: bytes, stream: bool) -> Response | StreamingResponse:
        """Call the model and count the tokens of its response; a path without a model API has none.

        Raises:
            ResilienceError: the call failed.
        """
        if not self._api:
            return await call_model(body, stream)
        body, hides_usage = self._prepare_body(body, stream=stream)
        try:
            response = await call_model(body, stream)
        except asyncio.CancelledError:  # the endpoint may have begun the response
            self.record(None, body)
            raise
        if isinstance(response, Response):
            self._record_response(body, response)
            return response
        return MeteredStream(response, self, body, hides_usage=hides_usage)

    def _prepare_body(self, body: bytes, *, stream: bool) -> tuple[bytes, bool]:
        """Return the body that makes the endpoint report the usage, and whether it differs."""
        if not stream or self._api not in _APIS_WITH_OPTION:
            return body, False
        given = _FIELDS_DECODER.decode(body).stream_options
        if isinstance(given, dict) and given.get("include_usage") is True:
            return body, False
        if given is msgspec.UNSET:
            return body.rstrip()[:-1] + _USAGE_OPTION, True
        fields = msgspec.json.decode(body)
        options = given if isinstance(given, dict) else {}
        return msgspec.json.encode({**fields, "stream_options": {**options, "include_usage": True}}), True

    def _record_response(self, body: bytes, response: Response) -> None:
        try:
            reported = parse_usage(_RESPONSE_DECODER.decode(response.body).usage)
        except (msgspec.MsgspecError, RecursionError):
            reported = None
        self.record(reported, body, estimated_output=len(response.body) // _BYTES_PER_TOKEN)

    def record(self, reported: Usage | None, body: bytes, *, estimated_output: int = 0) -> None:
        """Count a model call: its reported usage, or else an estimate."""
        if reported is None:
            reported = Usage(
                prompt_tokens=len(body) // _BYTES_PER_TOKEN + 1, completion_tokens=estimated_output
            )
        prompt, cached = reported.prompt_tokens or 0, reported.cached_tokens or 0
        completion = reported.completion_tokens or 0
        self.prompt_tokens += prompt * self._votes
        self.cached_tokens += cached * self._votes
        self.completion_tokens += completion * self._votes
        if reported.cost_usd is not None:
            self.cost_usd += reported.cost_usd * self._votes
        elif self._price is not None:
            self.cost_usd += self._price.compute_cost(prompt, completion, cached) * self._votes


class MeteredStream:
    """Streamed response that a meter reads.

    Args:
        response: the response.
        meter: meter of its request.
        body: body of the model call.
        hides_usage: True to remove the event that only reports the usage.
    """

    __slots__ = (
        "_body",
        "_events",
        "_hides_usage",
        "_is_recorded",
        "_meter",
        "_prompt_usage",
        "_response",
        "_usage",
        "headers",
        "notes",
        "replica",
        "status",
    )  # fmt: skip

    def __init__(
        self, response: StreamingResponse, meter: UsageMeter, body: bytes, *, hides_usage: bool
    ) -> None:
        self._response, self._meter, self._body, self._hides_usage = response, meter, body, hides_usage
        self.status: int = response.status
        self.headers: Headers = response.headers
        self.replica, self.notes = response.replica, response.notes
        self._usage: Usage | None = None
        self._prompt_usage: Usage | None = None
        self._events, self._is_recorded = 0, False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next events. Raises ResilienceError if the stream is interrupted."""
        while True:
            try:
                chunk = self._read(await anext(self._response))
            finally:
                self.notes = self._response.notes
            if chunk:
                return chunk

    async def aclose(self) -> None:
        """Close the stream and record its usage."""
        await self._response.aclose()
        if self._is_recorded:
            return
        self._is_recorded = True
        usage = self._usage
        if usage is None and self._prompt_usage is not None:
            usage = Usage(
                prompt_tokens=self._prompt_usage.prompt_tokens,
                cached_tokens=self._prompt_usage.cached_tokens,
                completion_tokens=self._events,
            )
        self._meter.record(usage, self._body, estimated_output=self._events)

    def _read(self, chunk: bytes) -> bytes:
        if _USAGE_FIELD not in chunk:
            self._events += chunk.count(b"data:")
            return chunk
        return b"".join(event for event in split_events(chunk) if self._read_event(event))

    def _read_event(self, event: bytes) -> bool:
        """Count an event; return whether the client gets it."""
        self._events += 1
        value = parse_event_fast(event) if _USAGE_FIELD in event else None
        if value is None:
            return True
        for holder in (value, value.get("response")):
            if isinstance(holder, dict) and (found := parse_usage(holder.get("usage"))) is not None:
                self._usage = _merge_usage(self._prompt_usage, found)
        if isinstance(message := value.get("message"), dict):
            self._prompt_usage = parse_usage(message.get("usage"))
        return not (self._hides_usage and value.get("choices") == [] and value.get("usage"))


def _merge_usage(prompt: Usage | None, last: Usage) -> Usage:
    """Combine the usage at the end of a stream with the input tokens that Anthropic reports at its start."""
    if prompt is None:
        return last
    return Usage(
        prompt_tokens=max(prompt.prompt_tokens or 0, last.prompt_tokens or 0),
        cached_tokens=max(prompt.cached_tokens or 0, last.cached_tokens or 0),
        completion_tokens=last.completion_tokens,
        cost_usd=last.cost_usd,
    )
