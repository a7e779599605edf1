"""Value types of requests to a chat endpoint and of its replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Message = Mapping[str, str]
Dialect = Literal["auto", "vllm", "openai"]


class ErrorKind(StrEnum):
    """Reason of a missing answer of an endpoint; a closed set."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    SERVER = "server"
    NO_MODEL = "no_model"
    REFUSED = "refused"
    TOO_LONG = "too_long"
    BAD_REQUEST = "bad_request"
    MALFORMED = "malformed"
    TRUNCATED = "cut"
    NO_PROBABILITIES = "no_probabilities"
    OUT_OF_SET = "outside"
    LOW_LABEL_MASS = "label_mass"


TRANSIENT_ERRORS = frozenset({ErrorKind.UNREACHABLE, ErrorKind.BUSY, ErrorKind.SERVER})
"""Errors that a retry can resolve."""

PERSISTENT_ERRORS = frozenset(
    {ErrorKind.TIMEOUT, ErrorKind.UNREACHABLE, ErrorKind.NO_MODEL, ErrorKind.REFUSED}
)
"""Errors that would repeat for every further question to the same endpoint."""


ERROR_REMEDIES: Mapping[ErrorKind, str] = {
    ErrorKind.TIMEOUT: "raise deadline_s, or ask fewer questions at once (max_concurrent)",
    ErrorKind.UNREACHABLE: "start the server (agentguard judge serve), or correct the address",
    ErrorKind.BUSY: "lower max_concurrent, raise retries, or add replicas",
    ErrorKind.SERVER: "read the log of the server",
    ErrorKind.NO_MODEL: "name a model of the list at /models; the address ends with /v1",
    ErrorKind.REFUSED: "put the key into AGENTGUARD_JUDGE_KEY, or name another variable in api_key_env",
    ErrorKind.TOO_LONG: "serve the model with a longer context (--max-model-len), or raise context_tokens",
    ErrorKind.BAD_REQUEST: "serve the model with vLLM, or correct extra_body and the template arguments",
    ErrorKind.MALFORMED: "name an OpenAI-compatible endpoint; the address ends with /v1",
    ErrorKind.TRUNCATED: "raise reasoning_tokens, or switch the model's thinking off",
    ErrorKind.NO_PROBABILITIES: "serve the model with vLLM, or name an endpoint that returns logprobs",
    ErrorKind.OUT_OF_SET: "serve the model with vLLM, which restricts answers to the options",
    ErrorKind.LOW_LABEL_MASS: "switch the model's thinking off (chat_template_kwargs), set reasoning_tokens, "
    "or serve another model",
}
"""Remedy of each error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """Failed call.

    Attributes:
        kind: reason.
        message: description in a clause; without text of the run or of the endpoint.
        retry_after_s: delay that the endpoint requested, if any.
        is_interrupted: whether the connection ended after the request was sent.
    """

    kind: ErrorKind
    message: str
    retry_after_s: float | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUsage:
    """Cost of calls: tokens as the endpoint counts them, and waiting time in seconds."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: CallUsage) -> CallUsage:
        return CallUsage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            seconds=self.seconds + other.seconds,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the usage for `agentguard.judge.base.JudgeAnswer.usage`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Generated token, and the log probabilities of the tokens that the endpoint lists at its position.

    Attributes:
        text: text of the generated token, without spaces around it.
        logprobs: log probabilities by text of the token; they may be minus infinity.
    """

    text: str
    logprobs: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReply:
    """Completed call.

    Attributes:
        text: the model's reply.
        finish_reason: the endpoint's ``finish_reason``.
        tokens: tokens of the answer with their alternatives; empty if the endpoint returned none.
        usage: cost of the call.
    """

    text: str
    finish_reason: str
    tokens: tuple[TokenLogprobs, ...] = ()
    usage: CallUsage = field(default_factory=CallUsage)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelProbabilities:
    """Probabilities of a closed set of labels.

    Attributes:
        probabilities: label to probability; they sum to 1.
        label_mass: probability that the model gave to all labels together before masking; None if the
        endpoint reports only masked probabilities.
        usage: cost of the call.
    """

    probabilities: Mapping[str, float]
    label_mass: float | None
    usage: CallUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointInfo:
    """Self-description of an endpoint.

    Attributes:
        model: model name for requests.
        version: that name and, if reported, the model that is served under it.
        is_vllm: whether the endpoint accepts vLLM's own fields.
        context_tokens: maximum of prompt and answer in tokens, if reported.
        is_listed: whether the endpoint lists the model, or lists no model at all.
    """

    model: str
    version: str
    is_vllm: bool
    context_tokens: int | None
    is_listed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Settings of an endpoint.

    Attributes:
        deadline_s: time limit of one call in seconds, over all attempts.
        retries: further attempts after a transient error, within the deadline.
        max_concurrent: maximum of concurrent calls.
        dialect: whether to send vLLM's own fields; ``"auto"`` asks the endpoint for its model.
        context_tokens: maximum of prompt and answer, if the endpoint does not report it.
        extra_body: further fields of each request, e.g.
            ``{"chat_template_kwargs": {"enable_thinking": False}}``.
    """

    deadline_s: float = 30.0
    retries: int = 0
    max_concurrent: int = 8
    dialect: Dialect = "auto"
    context_tokens: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


LABELS = "ABCDEFGHIJKLMNOPQRST"
"""Twenty labels, since OpenAI's API returns log probabilities of at most twenty tokens."""
