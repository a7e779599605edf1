"""Client of an OpenAI-compatible endpoint: answers from a closed set of labels, or a bounded JSON object.

The client requests one token with its log probabilities; it does not sample several answers.

- A request to vLLM has ``allowed_token_ids`` and ``logprob_token_ids``. vLLM can then return only a label. It
  reports the model's probability of each label *before* masking (measured on vLLM 0.32). With
  ``structured_outputs``, the numbers are those after the mask.
- A server that ignores these fields returns the log probability of only the generated label. The client
  detects this, and then requests the twenty most probable tokens, as from any other endpoint.
- An answer outside of the closed set is an error.

Errors of an endpoint are values (`CallError`), not exceptions. One deadline limits a call with all its
attempts, from its start. An endpoint that sends single bytes cannot extend it.
"""

from __future__ import annotations

import asyncio
import copy
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import ConfigError, MissingExtra
from agentguard.judge.llm.background_loop import BackgroundLoop, get_loop_time
from agentguard.judge.llm.response_parser import (
    parse_completion,
    parse_endpoint_info,
    parse_json_answer,
    parse_label_probabilities,
    parse_reasoned_label,
    to_call_error,
)
from agentguard.judge.llm.types import (
    ERROR_REMEDIES,
    TRANSIENT_ERRORS,
    CallError,
    CallUsage,
    EndpointInfo,
    EndpointOptions,
    ErrorKind,
    JudgeReply,
    LabelProbabilities,
    Message,
)
from agentguard.loopback import is_loopback

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

_TOP_LOGPROBS: Final = 20
_BACKOFF_S: Final = 0.25
_MODEL_LOOKUP_TIMEOUT_S: Final = 5.0
_KEEP_ALIVE_S: Final = 2.0
"""Keep-alive time of idle connections. vLLM closes them after 5 s and loses a request sent at that moment."""


class JudgeEndpoint:
    """Client of one model at one endpoint. Safe to use from threads and from any event loop.

    Args:
        base_url: URL up to and with ``/v1``.
        model: name of the model; None selects the first that the endpoint lists.
        api_key: bearer token; with None, the client sends a placeholder, which local servers ignore.
        options: deadlines, retries and limits.
        transport: function that builds the HTTP transport of the client, e.g. for several replicas
            (`agentguard.judge.llm.pool_transport`). It is called on the endpoint's event loop. The transport
            is closed with the endpoint.

    Raises:
        ConfigError: the URL or an option is invalid.
        MissingExtra: the openai package is not installed.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        options: EndpointOptions | None = None,
        transport: Callable[[], httpx2.AsyncBaseTransport] | None = None,
    ) -> None:
        self.options = options or EndpointOptions()
        _validate_options(base_url, self.options)
        _import_openai()
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._key = api_key or "none"
        self._transport = transport
        self.loop = BackgroundLoop("agentguard-judge")
        self._client: AsyncOpenAI | None = None
        self._semaphore: asyncio.Semaphore | None = None
        self._info: EndpointInfo | None = None
        self._label_token_ids: dict[str, int] | None = None
        self._has_tokenize = True
        self._has_label_logprobs = True

    def close(self) -> None:
        """Close the connections and stop the thread; a later call starts both again."""
        if self._client is not None:
            self.loop.run(self._client.close())
        self._client = self._semaphore = None
        self.loop.close()

    @property
    def info(self) -> EndpointInfo | None:
        """The endpoint's self-description, after the first request."""
        return self._info

    def get_served_model(self, deadline_s: float) -> str:
        """Return the model name that the endpoint reports; the configured name if it does not answer.

        The first call asks the endpoint and waits for at most 5 seconds.
        """
        info = self._info or self.loop.run(self.fetch_info(min(_MODEL_LOOKUP_TIMEOUT_S, deadline_s)))
        return info.version if isinstance(info, EndpointInfo) else self.model or "unknown"

    def describe_error(self, error: CallError) -> str:
        """Return the error's kind, cause and remedy, with the address of the endpoint without credentials."""
        parts = urllib.parse.urlsplit(self.base_url)
        address = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        place = "the replicas" if self._transport is not None else address
        return f"{error.kind}: {error.message} ({place}); {ERROR_REMEDIES[error.kind]}"

    # The coroutines below run only on ``self.loop``.

    async def fetch_info(self, deadline_s: float | None = None) -> EndpointInfo | CallError:
        """Ask the endpoint for its model; the answer is cached, an error is not."""
        if self._info is not None:
            return self._info
        listing = await self._call("list", {}, deadline_s)
        if isinstance(listing, CallError) and (self.model is None or listing.kind is not ErrorKind.NO_MODEL):
            return listing
        info = parse_endpoint_info(
            [] if isinstance(listing, CallError) else listing["data"], self.model, self.options
        )
        if isinstance(info, EndpointInfo) and info.is_listed:
            self._info = info
        return info

    async def select_label(
        self, messages: Sequence[Message], labels: Sequence[str], *, deadline_s: float | None = None
    ) -> LabelProbabilities | CallError:
        """Ask for one of the single-token labels; return the probability of each."""
        started = get_loop_time()
        info = await self.fetch_info(deadline_s)
        if isinstance(info, CallError):
            return info
        ids = (
            await self._fetch_token_ids(labels, _compute_remaining_time(deadline_s, started))
            if info.is_vllm and self._has_label_logprobs
            else {}
        )
        body: dict[str, Any] = {
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": _TOP_LOGPROBS,
        }
        is_masked = info.is_vllm and self._has_label_logprobs and not ids
        if ids:
            label_ids = [ids[label] for label in labels]
            body |= {"allowed_token_ids": label_ids, "logprob_token_ids": label_ids, "top_logprobs": 0}
        elif is_masked:
            body["structured_outputs"] = {"choice": list(labels)}
        reply = await self._request_completion(
            info, messages, body, _compute_remaining_time(deadline_s, started)
        )
        if isinstance(reply, CallError):
            return reply
        if ids and reply.tokens and not set(labels) <= reply.tokens[0].logprobs.keys():
            self._has_label_logprobs = False
            return await self.select_label(
                messages, labels, deadline_s=_compute_remaining_time(deadline_s, started)
            )
        return parse_label_probabilities(reply, labels, is_unmasked=not is_masked)

    async def reason_label(
        self,
        messages: Sequence[Message],
        labels: Sequence[str],
        *,
        max_tokens: int,
        deadline_s: float | None = None,
    ) -> LabelProbabilities | CallError:
        """Request a label after reasoning; return the probability of each label at its position in the reply.

        The reasoning may be in ``<think>`` tags, in a separate channel, or plain text before the label.

        Args:
            messages: the prompt, which asks for the label as the last word.
            labels: single-token labels.
            max_tokens: limit of reasoning and answer together.
            deadline_s: deadline of the call.
        """
        started = get_loop_time()
        info = await self.fetch_info(deadline_s)
        if isinstance(info, CallError):
            return info
        body: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": _TOP_LOGPROBS,
        }
        if info.is_vllm:
            own = self.options.extra_body.get("chat_template_kwargs", {})
            body["chat_template_kwargs"] = {"enable_thinking": True, **own}
        reply = await self._request_completion(
            info, messages, body, _compute_remaining_time(deadline_s, started)
        )
        return reply if isinstance(reply, CallError) else parse_reasoned_label(reply, labels)

    async def generate_json(
        self,
        messages: Sequence[Message],
        schema: Mapping[str, Any],
        *,
        max_tokens: int,
        deadline_s: float | None = None,
    ) -> tuple[Mapping[str, Any], CallUsage] | CallError:
        """Generate a complete JSON object that matches a schema, within ``max_tokens``."""
        started = get_loop_time()
        info = await self.fetch_info(deadline_s)
        if isinstance(info, CallError):
            return info
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        body = {"max_tokens": max_tokens, "temperature": 0, "response_format": form}
        reply = await self._request_completion(
            info, messages, body, _compute_remaining_time(deadline_s, started)
        )
        if isinstance(reply, CallError):
            return reply
        value = parse_json_answer(reply, schema)
        return value if isinstance(value, CallError) else (value, reply.usage)

    async def post(self, path: str, body: Mapping[str, Any], *, deadline_s: float | None = None) -> Any:
        """POST to a path of the server, e.g. ``/classify``; return JSON data or `CallError`."""
        return await self._call(path, body, deadline_s)

    async def _request_completion(
        self,
        info: EndpointInfo,
        messages: Sequence[Message],
        body: Mapping[str, Any],
        deadline_s: float | None,
    ) -> JudgeReply | CallError:
        started = get_loop_time()
        request = {"model": info.model, "messages": list(messages), **self.options.extra_body, **body}
        raw = await self._call("chat", request, deadline_s)
        if isinstance(raw, CallError):
            if raw.kind is ErrorKind.NO_MODEL:  # the endpoint serves another model now
                self._info = self._label_token_ids = None
                return replace(raw, message=f"{raw.message} for the model {info.model!r}")
            return raw
        return parse_completion(raw, get_loop_time() - started)

    async def _fetch_token_ids(self, labels: Sequence[str], deadline_s: float | None) -> Mapping[str, int]:
        """Fetch the token id of each label; empty if one is unknown or a label is more than one token."""
        self._label_token_ids = {} if self._label_token_ids is None else self._label_token_ids
        missing = (
            [label for label in labels if label not in self._label_token_ids] if self._has_tokenize else []
        )
        options = {"add_special_tokens": False}
        requests = [
            self.post("/tokenize", {**options, "prompt": label}, deadline_s=deadline_s) for label in missing
        ]
        for label, response in zip(missing, await asyncio.gather(*requests), strict=True):
            if (
                isinstance(response, CallError) and response.kind is ErrorKind.NO_MODEL
            ):  # the server has no such path
                self._has_tokenize = False
            tokens = None if isinstance(response, CallError) else response.get("tokens")
            if isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], int):
                self._label_token_ids[label] = tokens[0]
        token_ids = {
            label: self._label_token_ids[label] for label in labels if label in self._label_token_ids
        }
        return token_ids if len(token_ids) == len(set(token_ids.values())) == len(labels) else {}

    async def _call(self, operation: str, body: Mapping[str, Any], deadline_s: float | None) -> Any:
        """Make one call with its retries within one deadline; return JSON data or `CallError`."""
        limit = self.options.deadline_s if deadline_s is None else min(deadline_s, self.options.deadline_s)
        limit = max(0.0, limit)
        try:
            async with asyncio.timeout(limit):
                return await self._call_with_retries(operation, body, get_loop_time() + limit)
        except TimeoutError:
            return CallError(kind=ErrorKind.TIMEOUT, message=f"no answer within {limit:.3g} s")

    async def _call_with_retries(self, operation: str, body: Mapping[str, Any], deadline: float) -> Any:
        client, gate = self._open_client()
        for attempt in range(self.options.retries + 1):
            try:
                async with gate:
                    return await _send_again_if_interrupted(client, operation, body, self.base_url)
            except Exception as error:  # every exception of the client becomes a value
                call_error = to_call_error(error)
            pause = call_error.retry_after_s
            pause = _BACKOFF_S * 2**attempt if pause is None else pause
            is_exhausted = attempt == self.options.retries or get_loop_time() + pause >= deadline
            if is_exhausted or call_error.kind not in TRANSIENT_ERRORS:
                return call_error
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _open_client(self) -> tuple[AsyncOpenAI, asyncio.Semaphore]:
        if self._client is None or self._semaphore is None:
            sdk = _import_openai()
            self._client = sdk.AsyncOpenAI(
                base_url=self.base_url,
                api_key=self._key,
                max_retries=0,
                timeout=self.options.deadline_s,
                http_client=self._build_http_client(sdk),
            )
            self._semaphore = asyncio.Semaphore(self.options.max_concurrent)
        return self._client, self._semaphore

    def _build_http_client(self, sdk: Any) -> Any:
        """Build the HTTP client; it ignores the proxies of the environment for a loopback host."""
        if self._transport is not None:
            return sdk.DefaultAsyncHttpxClient(transport=self._transport())
        limits = copy.copy(sdk.DEFAULT_CONNECTION_LIMITS)
        limits.keepalive_expiry = _KEEP_ALIVE_S
        host = urllib.parse.urlsplit(self.base_url).hostname or ""
        return sdk.DefaultAsyncHttpxClient(limits=limits, trust_env=not is_loopback(host))


async def _send_again_if_interrupted(
    client: AsyncOpenAI, operation: str, body: Mapping[str, Any], base_url: str
) -> Any:
    """Send a request; if the connection ends before the answer is complete, send it once more.

    A busy server closes idle connections late, and resets a request that has arrived meanwhile (4 of 2,588
    requests of `benchmarks/judge_load.py`). A request has no side effect, so the client may repeat it.
    """
    try:
        return await _send(client, operation, body, base_url)
    except Exception as error:
        if not to_call_error(error).is_interrupted:
            raise
    return await _send(client, operation, body, base_url)


async def _send(client: AsyncOpenAI, operation: str, body: Mapping[str, Any], base_url: str) -> Any:
    """Send a request and return JSON data, since the models of the SDK omit fields that vLLM adds."""
    if operation == "list":
        return (await client.models.with_raw_response.list()).http_response.json()
    if operation.startswith("/"):
        root = base_url.removesuffix("/v1")
        return await client.post(f"{root}{operation}", cast_to=dict[str, Any], body=body)
    arguments = {key: body[key] for key in ("model", "messages")}
    extra_body = {key: value for key, value in body.items() if key not in arguments}
    response = await client.chat.completions.with_raw_response.create(**arguments, extra_body=extra_body)
    return response.http_response.json()


def _compute_remaining_time(deadline_s: float | None, started: float) -> float | None:
    return None if deadline_s is None else deadline_s - (get_loop_time() - started)


def _validate_options(base_url: str, options: EndpointOptions) -> None:
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{base_url!r} is not the URL of an endpoint: it must begin with http:// or https://"
        )
    if not (options.deadline_s > 0 and 0 <= options.retries <= 10 and options.max_concurrent >= 1):
        raise ConfigError(
            "an endpoint needs deadline_s above 0, retries between 0 and 10, and max_concurrent of at least 1"
        )
    if options.dialect not in ("auto", "vllm", "openai"):
        raise ConfigError(f"{options.dialect!r} is not a dialect; there are: auto, vllm, openai")


def _import_openai() -> Any:
    try:
        import openai
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "openai":
            raise
        raise MissingExtra("openai", "chat") from None
    return openai
