"""Known-answer probe: a small question that detects failures such as silent corruption."""

from __future__ import annotations

from typing import Literal

import orjson

from agentguard.backends.base import BackendRequest, Response, UpstreamError
from agentguard.backends.config import ANY_MODEL, ProbeOptions
from agentguard.backends.replica import Replica
from agentguard.errors import ResilienceError
from agentguard.model_api import API_FORMATS
from agentguard.resilience import Deadline, Runtime
from agentguard.resilience.stream_timeout import close_response

ProbeOutcome = Literal["right", "wrong", "silent", "unclear"]
_HEADERS = ((b"content-type", b"application/json"),)
_MAX_BODY_BYTES = 100_000


class KnownAnswerProbe:
    """Probes one replica over the chat API, or over Anthropic's Messages API if it lacks the chat API.

    The question bypasses all strategies, so the outcome is that of the endpoint.
    """

    def __init__(self, options: ProbeOptions, replica: Replica) -> None:
        self._options, self._replica = options, replica
        speaks = replica.options.apis
        self._api = "chat" if speaks is None or "chat" in speaks else "messages"

    @staticmethod
    def supports(replica: Replica) -> bool:
        """Return whether a replica supports an API that can be probed."""
        speaks = replica.options.apis
        return speaks is None or "chat" in speaks or "messages" in speaks

    async def run(self, runtime: Runtime) -> ProbeOutcome:
        """Probe once; return ``right``, ``wrong``, or ``silent`` if there is no answer in time.

        The outcome is ``unclear`` if the question was rejected: a wrong key or model, or too many requests.
        """
        deadline = Deadline.after(self._options.timeout_s, clock=runtime.clock)
        try:
            answer = await deadline.run(
                self._replica.backend.send(self.build_request(), deadline), "the canary"
            )
        except UpstreamError as error:
            return "unclear" if error.response.status < 500 else "silent"
        except (ResilienceError, OSError, EOFError):
            return "silent"
        if not isinstance(answer, Response):
            await close_response(answer)
            return "wrong"  # the request did not ask for a stream
        return "right" if self._is_expected(answer.body) else "wrong"

    def build_request(self) -> BackendRequest:
        """Build the request of the question."""
        options = self._options
        model = self._select_model()
        body = {
            "model": model,
            "messages": [{"role": "user", "content": options.prompt}],
            "max_tokens": options.max_tokens,
            "temperature": 0,
        }
        target = "/chat/completions" if self._api == "chat" else "/messages"
        headers = _HEADERS if self._api == "chat" else (*_HEADERS, (b"anthropic-version", b"2023-06-01"))
        return BackendRequest(
            target=target, headers=headers, body=orjson.dumps(body), api=API_FORMATS[self._api], model=model
        )

    def _select_model(self) -> str:
        """Return the model's name at this replica."""
        models = self._replica.options.models
        model = self._options.model or next((name for name in models if name != ANY_MODEL), "")
        served_model = models.get(model) or models.get(ANY_MODEL) or model
        return model if served_model == ANY_MODEL else served_model

    def _is_expected(self, body: bytes) -> bool:
        """Return whether the answer's text contains the expected text; IDs and names are ignored."""
        try:
            answer = orjson.loads(body[:_MAX_BODY_BYTES])
            if self._api == "chat":
                text = answer["choices"][0]["message"]["content"]
            else:
                text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        except (ValueError, KeyError, IndexError, TypeError):
            return False
        return isinstance(text, str) and self._options.expected.casefold() in text.casefold()
