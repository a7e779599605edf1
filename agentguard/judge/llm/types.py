"""What goes to a chat endpoint and comes back, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Message = Mapping[str, str]
Dialect = Literal["auto", "vllm", "openai"]


class ErrorKind(StrEnum):
    """Why an endpoint gave no answer; closed, so that callers can act on it."""

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


TRANSIENT_ERRORS = frozenset({ErrorKind.UNREACHABLE, ErrorKind.BUSY, ErrorKind.SERVER})
"""Faults that another try can mend."""

PERSISTENT_ERRORS = frozenset(
    {ErrorKind.TIMEOUT, ErrorKind.UNREACHABLE, ErrorKind.NO_MODEL, ErrorKind.REFUSED}
)
"""Faults that every further question to the same endpoint would meet as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """A call that gave no answer.

    Attributes:
        fault: which kind.
        message: what happened, in a clause; nothing of a run or of the endpoint's text is in it.
        retry_after_s: what the endpoint asked to wait, if it did.
    """

    kind: ErrorKind
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUsage:
    """What calls cost: tokens as the endpoint counts them, and seconds of waiting."""

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
        """For `agentguard.judge.base.JudgeAnswer.usage`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReply:
    """A completed call.

    Attributes:
        text: what the model said.
        finish: the endpoint's ``finish_reason``.
        logprobs: of the first token: token text to log probability; empty where the endpoint gave none.
        spent: what it cost.
    """

    text: str
    finish_reason: str
    logprobs: Mapping[str, float] = field(default_factory=dict)
    usage: CallUsage = field(default_factory=CallUsage)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelProbabilities:
    """One label out of a closed set.

    Attributes:
        probabilities: label to probability; they sum to 1.
        mass: probability that the model gave to all labels together before anything was masked; None where
            the endpoint only tells what is left after its mask.
        spent: what it cost.
    """

    probabilities: Mapping[str, float]
    label_mass: float | None
    usage: CallUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointInfo:
    """What an endpoint says of itself.

    Attributes:
        model: name it is asked under.
        version: that name and, where told, what is served under it.
        vllm: whether it understands vLLM's own fields.
        context: longest prompt and answer in tokens, where told.
        listed: whether it names the model, or names none at all.
    """

    model: str
    version: str
    is_vllm: bool
    context_tokens: int | None
    is_listed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """How an endpoint is used.

    Attributes:
        deadline_s: seconds for one call, with all its tries.
        retries: further tries after a fault that may pass; each within the deadline.
        concurrency: calls that are under way at once.
        dialect: whether vLLM's own fields may be sent; ``"auto"`` asks the endpoint what it is.
        context_tokens: longest prompt and answer, where the endpoint does not tell.
        body: further fields of each request, e.g. ``{"chat_template_kwargs": {"enable_thinking": False}}``.
    """

    deadline_s: float = 30.0
    retries: int = 0
    max_concurrent: int = 8
    dialect: Dialect = "auto"
    context_tokens: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def list_labels(count: int) -> Sequence[str]:
    """The first ``count`` labels: capital letters, each a token of its own in the vocabularies in use."""
    return LABELS[:count]


LABELS = "ABCDEFGHIJKLMNOPQRST"
"""Twenty: the most tokens that OpenAI's API gives log probabilities of."""
