"""Partial response of an interrupted stream, and the request for its rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from agentguard.backends.base import BackendRequest
from agentguard.errors import AgentGuardError, BackendError
from agentguard.model_api.canonical import parse_payloads
from agentguard.model_api.json_rewrite import append_item, decode_value, parse_fields, replace_fields

_TOKEN_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
_MIN_TOKENS_FIELD = "min_tokens"
_FORMAT_FIELDS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "echo",
    "suffix",
)
_TOKEN_DETAIL_FIELDS = ("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "use_beam_search")


class NotResumable(AgentGuardError):
    """A stream cannot be resumed; the message is the reason in one clause."""

    code = "unfit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialResponse:
    """Part of a response that the client has received.

    Attributes:
        api: ``chat`` or ``completions``.
        common_fields: chunk fields that the rest must repeat: id, created, model.
        text: received text.
        token_count: number of chunks with text; at least this many tokens were received.
    """

    api: str
    common_fields: dict[str, Any]
    text: str
    token_count: int

    @property
    def resume_text(self) -> str:
        """Return the text to send, without trailing spaces, and for chat without leading spaces.

        Many templates strip them, and then servers do not find the message to continue (vLLM #9547,
        transformers #34214 and #35433). Also, most tokens begin with their space.
        """
        return self.text.strip() if self.api == "chat" else self.text.rstrip()

    @property
    def trailing_whitespace(self) -> str:
        """Return the end of the text that is not sent; the rest will repeat it."""
        return self.text[len(self.text.rstrip()) :]


def parse_partial_response(api: str, forwarded: bytes) -> PartialResponse:
    """Parse the forwarded part of a response. Raises NotResumable if it cannot be resumed."""
    text: list[str] = []
    head: dict[str, Any] = {}
    try:
        for chunk in parse_payloads(forwarded):
            head = head or {key: chunk[key] for key in ("id", "created", "model") if key in chunk}
            text += [_extract_text(api, choice) for choice in chunk.get("choices") or ()]
    except (ValueError, AttributeError, TypeError):
        raise NotResumable("the forwarded part cannot be parsed") from None
    return PartialResponse(api=api, common_fields=head, text="".join(text), token_count=sum(map(bool, text)))


def _extract_text(api: str, choice: Any) -> str:
    """Return the text of a choice's delta. Raises NotResumable if the delta contains anything else."""
    if choice.get("index", 0) != 0:
        raise NotResumable("it has several choices")
    if choice.get("finish_reason"):
        raise NotResumable("only its last event is missing")
    if choice.get("logprobs"):
        raise NotResumable("it has log probabilities")
    if api == "completions":
        return str(choice.get("text") or "")
    delta = choice.get("delta") or {}
    other_fields = sorted(key for key, part in delta.items() if part and key not in ("role", "content"))
    if other_fields:
        raise NotResumable(f"it has more than text: {', '.join(other_fields)}")
    return str(delta.get("content") or "")


def build_resume_request(request: BackendRequest, partial: PartialResponse) -> bytes:
    """Build the body that requests the rest.

    Raises:
        NotResumable: the request cannot be resumed.
        BackendError: the body is not a JSON object.
    """
    fields = parse_fields(request.body)
    options = {
        key: decode_value(raw) for key, raw in fields.items() if key not in ("messages", "prompt", "tools")
    }
    _check_resumable(options)
    changes: dict[str, Any] = {
        name: max(1, options[name] - partial.token_count)
        for name in _TOKEN_LIMIT_FIELDS
        if isinstance(options.get(name), int)
    }
    if isinstance(options.get(_MIN_TOKENS_FIELD), int):
        changes[_MIN_TOKENS_FIELD] = max(0, options[_MIN_TOKENS_FIELD] - partial.token_count)
    if partial.resume_text and partial.api == "chat":
        message = orjson.dumps({"role": "assistant", "content": partial.resume_text})
        try:
            changes["messages"] = append_item(fields["messages"], message)
        except (KeyError, BackendError):
            raise NotResumable("its messages are not a list") from None
        changes |= {"add_generation_prompt": False, "continue_final_message": True}
    elif partial.resume_text:
        prompt = decode_value(fields.get("prompt"))
        if not isinstance(prompt, str):
            raise NotResumable("its prompt is not text")
        changes["prompt"] = prompt + partial.resume_text
    return replace_fields(request.body, changes)


def _check_resumable(body: dict[str, Any]) -> None:
    """Check that a second answer can be appended to the first. Raises NotResumable."""
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        raise NotResumable("it asks for several choices")
    unsupported_fields = [
        name for name in (*_FORMAT_FIELDS, *_TOKEN_DETAIL_FIELDS) if body.get(name) not in (None, False, 0)
    ]
    if unsupported_fields:
        raise NotResumable(f"it asks for {', '.join(unsupported_fields)}")
    kind = body.get("response_format")
    if kind is not None and not (isinstance(kind, dict) and kind.get("type") == "text"):
        raise NotResumable("its response has a required format")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise NotResumable("it forces a tool")
    if body.get("continue_final_message"):
        raise NotResumable("it continues a message by itself")
