"""LLM distiller: a model writes signature, context and heuristics of a failure, in one call.

The method is that of CORRECT (arXiv 2509.24088). The model reads the run and the faulty step, and answers
with JSON of bounded strings and lists. Its output may leak the label or the topic, so every sentence is
checked:

- A sentence with the name of an agent or the position of the step is dropped.
- The topic is removed from the other sentences (`agentguard.schemata.profiles.delexicalization`).
- A sentence of which too little remains is dropped.

Traits, codes, module, correction and provenance are those of the embedded distiller, so retrieval and merges
treat schemata of both distillers equally.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.prompt import build_messages, compute_nonce, fence, render_run, render_step
from agentguard.judge.llm.types import CallError
from agentguard.schemata.distillation.distiller import EmbeddedDistiller, build_schema_id
from agentguard.schemata.model import ErrorSchema
from agentguard.schemata.profiles.delexicalization import GAP_MARKER, Delexicalizer
from agentguard.trajectory.model import Record, Step, Trajectory

_CONTEXT_TOKENS: Final = 8_192
_MAX_TOKENS: Final = 600
_CHARS_PER_TOKEN: Final = 3
_MAX_EXCERPT_CHARS: Final = 1_500
_PROMPT: Final = (
    "The step above is where this run went wrong. Describe the kind of failure so that it can be recognised "
    "in runs on other tasks. signature: how the failure shows. context: the situation it arises in. "
    "heuristics: how to tell it from what only looks like it. Write short general sentences. Name no agent, "
    "no person, no place, no number, no step, and nothing of the task. Answer with one JSON object."
)
_SENTENCE_SCHEMA: Final = {"type": "string", "minLength": 10, "maxLength": 200}
RESPONSE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "signature": {"type": "array", "items": _SENTENCE_SCHEMA, "minItems": 1, "maxItems": 3},
        "context": {"type": "array", "items": _SENTENCE_SCHEMA, "maxItems": 2},
        "heuristics": {"type": "array", "items": _SENTENCE_SCHEMA, "maxItems": 3},
    },
    "required": ["signature", "context", "heuristics"],
    "additionalProperties": False,
}
"""Schema of the model's answer: bounded, so that it ends before the token limit."""

_STEP_WORD_PATTERN: Final = r"(?:step|turn|message|round|index)s?"
_POSITION_PATTERN: Final = re.compile(
    rf"\b(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last|final|initial|opening|\d+\w*)"
    rf"[\s-]+{_STEP_WORD_PATTERN}\b|\b{_STEP_WORD_PATTERN}\W{{0,3}}(?:number|no\.?|one|two|three|four|five|six|seven|eight|nine|ten|\d)",
    re.IGNORECASE,
)
_WORD_PATTERN: Final = re.compile(r"[^\W\d_]+")
_MIN_RETAINED_SHARE: Final = 0.5
_MIN_WORDS: Final = 3


class LLMDistiller:
    """Distiller of schemata by a chat model.

    Args:
        endpoint: chat endpoint of the model.
        deadline_s: seconds for one schema; the deadline of the endpoint applies as well.
    """

    def __init__(self, endpoint: JudgeEndpoint, *, deadline_s: float | None = None) -> None:
        self.endpoint = endpoint
        self._deadline_s = deadline_s
        self._embedded = EmbeddedDistiller()
        self._secret = secrets.token_bytes(32)

    @property
    def name(self) -> str:
        """Method in the provenance: ``"chat:<model>"``."""
        info = self.endpoint.info
        return f"chat:{info.model if info else self.endpoint.model or 'unknown'}"

    def distill(self, record: Record, findings: Sequence[Finding]) -> ErrorSchema | None:
        """Return the schema of an annotated failure; None if the embedded distiller returns None.

        Raises:
            JudgeError: the model is unavailable, its answer does not match the schema, or no sentence of its
                signature is usable.
        """
        cause = record.annotation.root_cause
        schema = self._embedded.distill(record, findings)
        if schema is None or cause is None or cause.step is None:
            return None
        run = record.trajectory
        response = self.endpoint.loop.run(self._generate(run, run.steps[cause.step]))
        sentences = {
            part: _clean_sentences(response[part], run) for part in ("signature", "context", "heuristics")
        }
        if not sentences["signature"]:
            raise JudgeError(
                f"{self.name} returned no sentence of a signature without the task, an agent or a position"
            )
        parts = (sentences["signature"], sentences["context"], sentences["heuristics"])
        return replace(
            schema,
            id=build_schema_id(run.id, parts, schema.codes),
            signature=parts[0],
            context=parts[1],
            heuristics=parts[2],
            provenance=replace(schema.provenance, method=self.name),
        )

    async def _generate(self, run: Trajectory, step: Step) -> Mapping[str, Any]:
        info = await self.endpoint.fetch_info(self._deadline_s)
        if isinstance(info, CallError):
            raise _to_error(self.name, info)
        # Each word of the answer is checked, so the nonce need not be a secret.
        nonce = compute_nonce(run, b"")
        excerpt = fence([render_step(step, _MAX_EXCERPT_CHARS)], title="step at fault", nonce=nonce)
        limit = (
            ((info.context_tokens or _CONTEXT_TOKENS) - _MAX_TOKENS) * _CHARS_PER_TOKEN
            - len(excerpt)
            - len(_PROMPT)
            - 500
        )
        try:
            rendered = render_run(run, nonce=nonce, limit=limit)
        except ConfigError as error:
            raise JudgeError(str(error)) from None
        messages = build_messages(rendered, (), excerpt + _PROMPT)
        reply = await self.endpoint.generate_json(
            messages, RESPONSE_SCHEMA, max_tokens=_MAX_TOKENS, deadline_s=self._deadline_s
        )
        if isinstance(reply, CallError):
            raise _to_error(self.name, reply)
        return reply[0]


def _clean_sentences(sentences: Iterable[str], run: Trajectory) -> tuple[str, ...]:
    """Return the sentences without their topic, each once; drop those that leak the answer."""
    delexicalizer = Delexicalizer(run)
    name_pattern = _compile_agent_names(run)
    clean_sentences = [
        plain
        for sentence in sentences
        if not _POSITION_PATTERN.search(sentence) and not (name_pattern and name_pattern.search(sentence))
        if (plain := _delexicalize_sentence(sentence, delexicalizer))
    ]
    return tuple(dict.fromkeys(clean_sentences))


def _delexicalize_sentence(sentence: str, delexicalizer: Delexicalizer) -> str:
    """Return a sentence without its topic; empty if too little remains or the rest names a position."""
    plain = delexicalizer(sentence)
    words = [word for word in _WORD_PATTERN.findall(plain) if word != GAP_MARKER]
    original_words = _WORD_PATTERN.findall(sentence)
    if len(words) < max(_MIN_WORDS, _MIN_RETAINED_SHARE * len(original_words)) or _POSITION_PATTERN.search(
        plain
    ):
        return ""
    text = plain.strip(f" .{GAP_MARKER}")
    return f"{text[:1].upper()}{text[1:]}."


def _compile_agent_names(run: Trajectory) -> re.Pattern[str] | None:
    """Return a pattern of the agents' names in all usual forms, such as spaces for underscores."""
    names = {step.agent for step in run.steps if len(step.agent) > 1}
    forms = names | {re.sub(r"[_\W]+", " ", name).strip() for name in names}
    alternatives = sorted((re.escape(form) for form in forms if form), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.IGNORECASE) if alternatives else None


def _to_error(name: str, failed: CallError) -> JudgeError:
    return JudgeError(f"{name} returned no schema: {failed.message} ({failed.kind})")
