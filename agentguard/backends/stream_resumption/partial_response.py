"""What was heard of an answer that broke off, and the request that asks for the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from agentguard.backends.base import BackendRequest
from agentguard.errors import AgentGuardError, BackendError
from agentguard.model_api.canonical import payloads
from agentguard.model_api.json_rewrite import appended, changed, fields, value

_LIMITS = ("max_tokens", "max_completion_tokens")
_LEAST = "min_tokens"
_GRAMMAR = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "echo",
    "suffix",
)
_COUNTED = ("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "use_beam_search")


class NotResumable(AgentGuardError):
    """An answer can't be continued; says why in one clause."""

    code = "unfit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialResponse:
    """What the client has of an answer.

    Attributes:
        api: ``chat`` or ``completions``.
        head: fields of its chunks that the rest must have, too: id, created, model.
        text: of the answer.
        tokens: chunks with text; at least so many tokens came.
    """

    api: str
    head: dict[str, Any]
    text: str
    tokens: int

    @property
    def asked(self) -> str:
        """The text that is sent, without spaces at its end, and for chat none at its beginning either.

        Many templates cut them, and servers then don't find the message that they should go on with (vLLM
        #9547, transformers #34214 and #35433); besides, most tokens begin with their space.
        """
        return self.text.strip() if self.api == "chat" else self.text.rstrip()

    @property
    def over(self) -> str:
        """What of the text is not sent, and will come again."""
        return self.text[len(self.text.rstrip()) :]


def parse_partial_response(api: str, shown: bytes) -> PartialResponse:
    """Read what was shown of an answer. Raises Unfit if it can't be continued."""
    text: list[str] = []
    head: dict[str, Any] = {}
    try:
        for chunk in payloads(shown):
            head = head or {key: chunk[key] for key in ("id", "created", "model") if key in chunk}
            text += [_delta(api, choice) for choice in chunk.get("choices") or ()]
    except (ValueError, AttributeError, TypeError):
        raise NotResumable("what was shown can't be read") from None
    return PartialResponse(api=api, head=head, text="".join(text), tokens=sum(map(bool, text)))


def _delta(api: str, choice: Any) -> str:
    """The text of a choice's delta. Raises Unfit for anything else in it."""
    if choice.get("index", 0) != 0:
        raise NotResumable("it has several choices")
    if choice.get("finish_reason"):
        raise NotResumable("it was finished but for its last event")
    if choice.get("logprobs"):
        raise NotResumable("it has log probabilities")
    if api == "completions":
        return str(choice.get("text") or "")
    delta = choice.get("delta") or {}
    other = sorted(key for key, part in delta.items() if part and key not in ("role", "content"))
    if other:
        raise NotResumable(f"it has more than text: {', '.join(other)}")
    return str(delta.get("content") or "")


def build_resume_request(request: BackendRequest, before: PartialResponse) -> bytes:
    """The body that asks for the rest. Raises Unfit, or BackendError for a body that is no JSON object."""
    found = fields(request.body)
    given = {key: value(raw) for key, raw in found.items() if key not in ("messages", "prompt", "tools")}
    _check(given)
    changes: dict[str, Any] = {
        name: max(1, given[name] - before.tokens) for name in _LIMITS if isinstance(given.get(name), int)
    }
    if isinstance(given.get(_LEAST), int):
        changes[_LEAST] = max(0, given[_LEAST] - before.tokens)
    if before.asked and before.api == "chat":
        message = orjson.dumps({"role": "assistant", "content": before.asked})
        try:
            changes["messages"] = appended(found["messages"], message)
        except (KeyError, BackendError):
            raise NotResumable("its messages are no list") from None
        changes |= {"add_generation_prompt": False, "continue_final_message": True}
    elif before.asked:
        prompt = value(found.get("prompt"))
        if not isinstance(prompt, str):
            raise NotResumable("its prompt is no text")
        changes["prompt"] = prompt + before.asked
    return changed(request.body, changes)


def _check(given: dict[str, Any]) -> None:
    """Refuse what a second answer could not be joined to."""
    if given.get("n") not in (None, 1) or given.get("best_of") not in (None, 1):
        raise NotResumable("it asks for several choices")
    bound = [name for name in (*_GRAMMAR, *_COUNTED) if given.get(name) not in (None, False, 0)]
    if bound:
        raise NotResumable(f"it asks for {', '.join(bound)}")
    kind = given.get("response_format")
    if kind is not None and not (isinstance(kind, dict) and kind.get("type") == "text"):
        raise NotResumable("its answer must have a form")
    if given.get("tool_choice") not in (None, "auto", "none"):
        raise NotResumable("it asks for a certain tool")
    if given.get("continue_final_message"):
        raise NotResumable("it continues a message by itself")
