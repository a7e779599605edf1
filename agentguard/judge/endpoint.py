"""The client to an OpenAI-compatible endpoint: a closed set of labels or a bounded JSON object, or a fault.

Asked are single tokens with their log probabilities, never samples to be counted. vLLM is asked with
``allowed_token_ids`` and ``logprob_token_ids``: it can say nothing but a label, and tells what the model
thought of each label *before* it was masked (measured on vLLM 0.32; under ``structured_outputs`` the numbers
are those after the mask). Any other endpoint is asked for the likeliest twenty tokens, and an answer outside
the closed set is a fault.

Nothing is raised for what an endpoint does: faults are values (`Failed`). Every call has one deadline over
all its tries, counted from its beginning, so that an endpoint that sends a byte now and then is not waited
for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import ConfigError, MissingExtra
from agentguard.judge.loop import BackgroundLoop, now
from agentguard.judge.replies import failure, json_object, read_reply
from agentguard.judge.wire import (
    PASSING,
    EndpointOptions,
    Facts,
    Failed,
    Fault,
    Message,
    Picked,
    Reply,
    Spent,
)

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

_TOP: Final = 20
_BACKOFF_S: Final = 0.25
_SERVES_S: Final = 5.0


class Endpoint:
    """One endpoint and one model of it. Safe to use from threads and from any event loop.

    Args:
        base_url: up to and with ``/v1``.
        model: name of the model; None takes the first that the endpoint lists.
        api_key: sent as a bearer token; None sends a placeholder, which local servers ignore.
        options: deadlines, retries and the like.
        transport: makes what requests go through in place of connections of its own, e.g. several replicas
            (`agentguard.judge.replicas`); called on the endpoint's own loop, and closed with it.

    Raises:
        ConfigError: the address or an option is wrong.
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
        _check(base_url, self.options)
        _openai()
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._key = api_key or "none"
        self._transport = transport
        self.loop = BackgroundLoop("agentguard-judge")
        self._client: AsyncOpenAI | None = None
        self._gate: asyncio.Semaphore | None = None
        self._facts: Facts | None = None
        self._ids: dict[str, int] | None = None
        self._tells_tokens = True

    def close(self) -> None:
        """Close connections and end the thread; a later call opens anew."""
        if self._client is not None:
            self.loop.run(self._client.close())
        self._client = self._gate = None
        self.loop.close()

    @property
    def known(self) -> Facts | None:
        """What the endpoint said of itself, once it was asked."""
        return self._facts

    def serves(self, deadline_s: float) -> str:
        """The model that is served, as the endpoint names it; as configured where it is away.

        Asks it, if it has not been asked; waits for at most 5 seconds.
        """
        known = self._facts or self.loop.run(self.facts(min(_SERVES_S, deadline_s)))
        return known.version if isinstance(known, Facts) else self.model or "unknown"

    # The coroutines below run on ``self.loop`` and nowhere else.

    async def facts(self, deadline_s: float | None = None) -> Facts | Failed:
        """Ask the endpoint what it serves; once, unless it could not tell."""
        if self._facts is not None:
            return self._facts
        listed = await self._bounded("list", {}, deadline_s)
        if isinstance(listed, Failed) and (self.model is None or listed.fault is not Fault.NO_MODEL):
            return listed
        found = _facts([] if isinstance(listed, Failed) else listed["data"], self.model, self.options)
        if isinstance(found, Facts) and found.listed:
            self._facts = found
        return found

    async def pick(
        self, messages: Sequence[Message], among: Sequence[str], *, deadline_s: float | None = None
    ) -> Picked | Failed:
        """One of some single-token labels, with the probability of each."""
        started = now()
        facts = await self.facts(deadline_s)
        if isinstance(facts, Failed):
            return facts
        ids = await self._token_ids(among, _left(deadline_s, started)) if facts.vllm else {}
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": _TOP}
        if ids:
            given = [ids[label] for label in among]
            body |= {"allowed_token_ids": given, "logprob_token_ids": given, "top_logprobs": 0}
        elif facts.vllm:
            body["structured_outputs"] = {"choice": list(among)}
        reply = await self._complete(facts, messages, body, _left(deadline_s, started))
        return reply if isinstance(reply, Failed) else _picked(reply, among, raw=bool(ids) or not facts.vllm)

    async def write(
        self,
        messages: Sequence[Message],
        schema: Mapping[str, Any],
        *,
        max_tokens: int,
        deadline_s: float | None = None,
    ) -> tuple[Mapping[str, Any], Spent] | Failed:
        """A JSON object that fits a schema, complete; ``max_tokens`` bounds how long it can be."""
        started = now()
        facts = await self.facts(deadline_s)
        if isinstance(facts, Failed):
            return facts
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        body = {"max_tokens": max_tokens, "temperature": 0, "response_format": form}
        reply = await self._complete(facts, messages, body, _left(deadline_s, started))
        if isinstance(reply, Failed):
            return reply
        value = json_object(reply, schema)
        return value if isinstance(value, Failed) else (value, reply.spent)

    async def post(self, path: str, body: Mapping[str, Any], *, deadline_s: float | None = None) -> Any:
        """JSON data of a POST to a path of the server's own, e.g. ``/classify``; or `Failed`."""
        return await self._bounded(path, body, deadline_s)

    async def _complete(
        self, facts: Facts, messages: Sequence[Message], body: Mapping[str, Any], deadline_s: float | None
    ) -> Reply | Failed:
        started = now()
        request = {"model": facts.model, "messages": list(messages), **self.options.body, **body}
        raw = await self._bounded("chat", request, deadline_s)
        if isinstance(raw, Failed):
            if raw.fault is Fault.NO_MODEL:  # something else is served there now
                self._facts = self._ids = None
            return raw
        return read_reply(raw, now() - started)

    async def _token_ids(self, among: Sequence[str], deadline_s: float | None) -> Mapping[str, int]:
        """Token id of each label; empty where the server does not tell, or a label is no single token."""
        self._ids = {} if self._ids is None else self._ids
        wanted = [label for label in among if label not in self._ids] if self._tells_tokens else []
        told = {"add_special_tokens": False}
        asked = [self.post("/tokenize", {**told, "prompt": label}, deadline_s=deadline_s) for label in wanted]
        for label, said in zip(wanted, await asyncio.gather(*asked), strict=True):
            if isinstance(said, Failed) and said.fault is Fault.NO_MODEL:  # it has no such path
                self._tells_tokens = False
            tokens = None if isinstance(said, Failed) else said.get("tokens")
            if isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], int):
                self._ids[label] = tokens[0]
        known = {label: self._ids[label] for label in among if label in self._ids}
        return known if len(known) == len(set(known.values())) == len(among) else {}

    async def _bounded(self, what: str, body: Mapping[str, Any], deadline_s: float | None) -> Any:
        """One call with its tries inside of one deadline: JSON data, or `Failed`."""
        limit = self.options.deadline_s if deadline_s is None else min(deadline_s, self.options.deadline_s)
        limit = max(0.0, limit)
        try:
            async with asyncio.timeout(limit):
                return await self._tries(what, body, now() + limit)
        except TimeoutError:
            return Failed(fault=Fault.TIMEOUT, message=f"no answer within {limit:.3g} s")

    async def _tries(self, what: str, body: Mapping[str, Any], end: float) -> Any:
        client, gate = self._opened()
        for attempt in range(self.options.retries + 1):
            try:
                async with gate:
                    return await _send(client, what, body, self.base_url)
            except Exception as error:  # whatever a client raises is a value from here on
                failed = failure(error)
            pause = failed.retry_after_s
            pause = _BACKOFF_S * 2**attempt if pause is None else pause
            spent = attempt == self.options.retries or now() + pause >= end
            if spent or failed.fault not in PASSING:
                return failed
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _opened(self) -> tuple[AsyncOpenAI, asyncio.Semaphore]:
        if self._client is None or self._gate is None:
            sdk, through = _openai(), self._transport
            self._client = sdk.AsyncOpenAI(
                base_url=self.base_url,
                api_key=self._key,
                max_retries=0,
                timeout=self.options.deadline_s,
                http_client=None if through is None else sdk.DefaultAsyncHttpxClient(transport=through()),
            )
            self._gate = asyncio.Semaphore(self.options.concurrency)
        return self._client, self._gate


async def _send(client: AsyncOpenAI, what: str, body: Mapping[str, Any], base_url: str) -> Any:
    """JSON data of a reply; the SDK's own models would hide fields that vLLM adds."""
    if what == "list":
        return (await client.models.with_raw_response.list()).http_response.json()
    if what.startswith("/"):
        root = base_url.removesuffix("/v1")
        return await client.post(f"{root}{what}", cast_to=dict[str, Any], body=body)
    known = {key: body[key] for key in ("model", "messages")}
    more = {key: value for key, value in body.items() if key not in known}
    said = await client.chat.completions.with_raw_response.create(**known, extra_body=more)
    return said.http_response.json()


def _facts(listed: Any, model: str | None, options: EndpointOptions) -> Facts | Failed:
    held = [one for one in listed if isinstance(one, dict) and isinstance(one.get("id"), str)]
    found = next((one for one in held if model in (None, one["id"])), None)
    if found is None and model is None:
        return Failed(fault=Fault.NO_MODEL, message="the endpoint lists no model, and none was named")
    told = found or {"id": model}
    served = f"{told['id']} ({told['root']})" if told.get("root") not in (None, told["id"]) else told["id"]
    longest = told.get("max_model_len")
    vllm = options.dialect == "vllm" or (options.dialect == "auto" and told.get("owned_by") == "vllm")
    context = options.context_tokens or (longest if isinstance(longest, int) else None)
    return Facts(model=told["id"], version=served, vllm=vllm, context=context, listed=not held or bool(found))


def _picked(reply: Reply, among: Sequence[str], *, raw: bool) -> Picked | Failed:
    if reply.finish not in {"stop", "length"}:
        return Failed(fault=Fault.CUT, message="the answer was withheld or broken off")
    if reply.text.strip() not in among:
        return Failed(fault=Fault.OUTSIDE, message="the answer is none of the labels that were given")
    masses = dict.fromkeys(among, 0.0)
    for token, logprob in reply.logprobs.items():
        if token in masses and math.isfinite(logprob):
            masses[token] += math.exp(min(0.0, logprob))
    total = math.fsum(masses.values())
    if total <= 0.0:
        message = "the endpoint gives no log probabilities of the labels"
        return Failed(fault=Fault.NO_PROBABILITIES, message=message)
    shares = {label: mass / total for label, mass in masses.items()}
    return Picked(probabilities=shares, mass=min(1.0, total) if raw else None, spent=reply.spent)


def _left(deadline_s: float | None, started: float) -> float | None:
    return None if deadline_s is None else deadline_s - (now() - started)


def _check(base_url: str, options: EndpointOptions) -> None:
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"{base_url!r} is no address of an endpoint; it begins with http:// or https://")
    if not (options.deadline_s > 0 and 0 <= options.retries <= 10 and options.concurrency >= 1):
        raise ConfigError(
            "an endpoint needs deadline_s over 0, retries between 0 and 10, and concurrency of at least 1"
        )
    if options.dialect not in ("auto", "vllm", "openai"):
        raise ConfigError(f"{options.dialect!r} is no dialect; there are: auto, vllm, openai")


def _openai() -> Any:
    try:
        import openai
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "openai":
            raise
        raise MissingExtra("openai", "chat") from None
    return openai
